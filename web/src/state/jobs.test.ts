import { describe, expect, it } from "vitest";
import { at, makeJob } from "../testing";
import type { Job } from "../wire";
import {
  countByStatus,
  emptySentence,
  filterQuery,
  type JobsAction,
  type JobsFilter,
  NO_JOBS,
  readFilter,
  reduceJobs,
  searchQuery,
  selectJobs,
  stepsPerSecond,
  timeLeft,
} from "./jobs";

const a = makeJob({ id: "job_a", name: "alpha", created_at: at(10), updated_at: at(20) });
const b = makeJob({
  id: "job_b",
  name: "beta",
  created_at: at(11),
  updated_at: at(20),
  status: "failed",
  reason: "hang",
});
const old = makeJob({ id: "job_0", name: "old", created_at: at(1), updated_at: at(2), status: "succeeded" });
const ALL = { status: "all", text: "" } as const;

const snapshot = (...items: Job[]): JobsAction => ({ type: "snapshot", items, next: null });
/** A snapshot beyond which there are older jobs. */
const full = (...items: Job[]): JobsAction => ({ type: "snapshot", items, next: items.at(-1)?.id ?? null });
const older = (after: Job, ...items: Job[]): JobsAction => ({
  type: "older",
  items,
  after: after.id,
  next: null,
});
const run = (...actions: JobsAction[]) => reduceJobs(NO_JOBS, actions);
const names = (...actions: JobsAction[]) => selectJobs(run(...actions), ALL).map((job) => job.name);

describe("reduceJobs", () => {
  it("is loading until the first snapshot, also an empty one", () => {
    expect(NO_JOBS.isLoaded).toBe(false);
    expect(run(snapshot()).isLoaded).toBe(true);
  });

  it("shows the newest first, and a delta in its job's place", () => {
    expect(names(snapshot(a, b))).toEqual(["beta", "alpha"]);
    const state = run(snapshot(a, b), { type: "job", job: { ...a, step: 50, updated_at: at(21) } });
    expect(state.jobs.get("job_a")?.step).toBe(50);
    expect(state.jobs.size).toBe(2);
  });

  it("ignores a delta older than what it knows", () => {
    const state = run(snapshot(a), { type: "job", job: { ...a, step: 1, updated_at: at(19) } });
    expect(state.jobs.get("job_a")?.step).toBe(10);
  });

  it("forgets a job that was deleted, and one that it never knew", () => {
    expect(names(snapshot(a, b), { type: "deleted", id: "job_a" }, { type: "deleted", id: "job_x" })).toEqual(
      ["beta"],
    );
  });

  it("is the same after a reconnect as without one", () => {
    const delta: JobsAction = { type: "job", job: { ...a, step: 50, updated_at: at(21) } };
    const cut = run(snapshot(a, b), delta, snapshot({ ...a, step: 50, updated_at: at(21) }, b));
    expect(cut.jobs).toEqual(run(snapshot(a, b), delta).jobs);
  });

  it("forgets with a new snapshot what was deleted, and keeps older pages", () => {
    expect(names(full(b, a), older(a, old), full(a))).toEqual(["alpha", "old"]);
    expect(names(snapshot(a, b), snapshot())).toEqual([]);
  });

  it("forgets also the oldest that was deleted, where the snapshot is the whole list", () => {
    expect(names(snapshot(b, a), snapshot(b))).toEqual(["beta"]);
  });

  it("forgets with a new look at an older page what was deleted there", () => {
    expect(names(full(b, a), older(a, old), full(b, a), older(a))).toEqual(["beta", "alpha"]);
  });

  it("forgets what neither a snapshot nor what is read again behind it tells", () => {
    const running = { ...old, status: "running" as const };
    const found: JobsAction = { type: "found", items: [running] };
    expect(names(full(b, a), found, full(b, a), { type: "reread" })).toEqual(["beta", "alpha"]);
    const delta: JobsAction = { type: "job", job: running };
    expect(names(full(b, a), delta, full(b, a), { type: "reread" })).toEqual(["beta", "alpha"]);
    // The list is one longer: what was open ends before the oldest now.
    const page: JobsAction = { type: "older", items: [a], after: "job_b", next: "job_a" };
    expect(names(full(b, a), older(a, running), full(b), page, { type: "reread" })).toEqual([
      "beta",
      "alpha",
    ]);
  });

  it("keeps what is told again after a snapshot, as it is now", () => {
    const found: JobsAction = { type: "found", items: [{ ...old, status: "running" }] };
    const again: JobsAction[] = [
      { type: "found", items: [{ ...old, updated_at: at(3) }] },
      { type: "older", items: [{ ...old, updated_at: at(3) }], after: "job_a", next: null },
      { type: "job", job: { ...old, updated_at: at(3) } },
    ];
    for (const one of again) {
      const state = run(full(b, a), found, full(b, a), one, { type: "reread" });
      expect(state.jobs.get("job_0")?.status).toBe("succeeded");
    }
  });

  it("keeps what was found while nothing was missed", () => {
    const found: JobsAction = { type: "found", items: [old] };
    expect(names(full(b, a), found, { type: "reread" })).toEqual(["beta", "alpha", "old"]);
  });

  it("takes from an older page nothing that a message told anew meanwhile", () => {
    const delta: JobsAction = { type: "job", job: { ...old, updated_at: at(3) } };
    const late = older(a, { ...old, status: "running" });
    expect(run(full(b, a), delta, late).jobs.get("job_0")?.status).toBe("succeeded");
  });

  it("knows where older jobs begin, and that a snapshot is new", () => {
    const once = run(full(b, a));
    expect([once.snapshots, once.next]).toEqual([1, "job_a"]);
    const twice = reduceJobs(once, [snapshot(b)]);
    expect([twice.snapshots, twice.next]).toEqual([2, null]);
  });

  it("knows all jobs once the last page was read, until it looks anew", () => {
    expect([NO_JOBS.isWhole, run(snapshot(a)).isWhole, run(full(b, a)).isWhole]).toEqual([
      false,
      true,
      false,
    ]);
    expect(run(full(b, a), { type: "found", items: [old] }).isWhole).toBe(false);
    expect(run(full(b, a), older(a, old)).isWhole).toBe(true);
    expect(run(full(b, a), older(a, old), full(b, a)).isWhole).toBe(false);
  });

  it("smooths the pace and drops it at the end", () => {
    const step = (seconds: number, update: number, fields: Partial<Job> = {}): JobsAction => ({
      type: "job",
      job: { ...a, metrics: { step_seconds: seconds }, updated_at: at(update), ...fields },
    });
    expect(run(step(1, 21), step(2, 22)).pace.get("job_a")).toBeCloseTo(1.3);
    expect(run(step(1, 21), step(1, 22, { status: "succeeded" })).pace.has("job_a")).toBe(false);
  });
});

describe("selectJobs", () => {
  const state = run(snapshot(a, b, makeJob({ id: "job_c", name: "gamma", labels: { team: "vision" } })));
  it.each([
    [{ status: "all", text: "team=vision" }, ["gamma"]],
    [{ status: "failed", text: "" }, ["beta"]],
    [{ status: "active", text: "" }, ["alpha", "gamma"]],
    [{ status: "all", text: "HANG beta" }, ["beta"]],
    [{ status: "queued", text: "" }, []],
  ] as const)("%o", (filter, expected) => {
    expect(selectJobs(state, filter).map((job) => job.name)).toEqual(expected);
  });

  it("says how older jobs were searched where none is found", () => {
    const none = "No job matches this filter.";
    const hang = { status: "all", text: "hang" } as const;
    expect(emptySentence(run(snapshot(a)), hang)).toBe(none);
    expect(emptySentence(run(full(a)), { status: "queued", text: " " })).toBe(none);
    expect(emptySentence(run(full(a)), hang)).toContain("searched by name, project and labels only");
  });

  it("counts by status", () => {
    expect(Object.fromEntries(countByStatus(state))).toEqual({ running: 2, failed: 1 });
  });
});

describe("timeLeft", () => {
  it("is steps to go times pace, while running and with a known total", () => {
    expect(timeLeft(a, 0.5)).toBe(45);
    expect(timeLeft({ ...a, total_steps: null }, 0.5)).toBeNull();
    expect(timeLeft({ ...a, status: "paused" }, 0.5)).toBeNull();
    expect(timeLeft(a, undefined)).toBeNull();
    expect(timeLeft({ ...a, step: 200 }, 1)).toBe(0);
  });
});

describe("the filter in the address", () => {
  it.each<[string, JobsFilter]>([
    ["", { status: "all", text: "" }],
    ["?status=failed", { status: "failed", text: "" }],
    ["?status=active&q=team%3Dvision+x", { status: "active", text: "team=vision x" }],
  ])("%s", (query, filter) => {
    expect(readFilter(query)).toEqual(filter);
    expect(filterQuery(filter)).toBe(query);
  });

  it("leaves out what makes no sense", () => {
    expect(readFilter("?status=happy&other=1")).toEqual(ALL);
    expect(filterQuery({ status: "all", text: "  " })).toBe("");
  });
});

describe("the course of the loss", () => {
  const listed = { ...a, step: 20, loss_history: [[10, 2] as [number, number], [20, 1] as [number, number]] };
  const told = (step: number, loss: number | null): JobsAction => ({
    type: "job",
    job: { ...a, step, metrics: { loss }, updated_at: at(step) },
  });

  it("is as the list tells it, and goes on with each message", () => {
    const state = run(snapshot(listed), told(30, 0.5), told(30, 0.5), told(31, null));
    expect(state.losses.get("job_a")).toEqual([
      [10, 2],
      [20, 1],
      [30, 0.5],
    ]);
  });

  it("begins with the first message of a job that is new, and ends with its deletion", () => {
    expect(run(told(1, 3)).losses.get("job_a")).toEqual([[1, 3]]);
    expect(run(told(1, 3), { type: "deleted", id: "job_a" }).losses.size).toBe(0);
  });
});

describe("jobs that a search found", () => {
  it("are shown with the others, and forget nothing of them", () => {
    const state = run(full(b, a), { type: "found", items: [old] });
    expect(selectJobs(state, ALL).map((job) => job.name)).toEqual(["beta", "alpha", "old"]);
    expect(state.next).toBe("job_a");
  });

  it.each([
    [{ status: "all", text: "  " }, null],
    [{ status: "failed", text: "" }, "status=failed"],
    [
      { status: "active", text: "" },
      "status=queued%2Cstarting%2Crunning%2Crecovering%2Cpausing%2Cpaused%2Cstopping",
    ],
    [{ status: "all", text: "digits a" }, "q=digits"],
    [
      { status: "failed", text: "project=vision team=a=b cnn" },
      "status=failed&project=vision&label=team%3Da%3Db&q=cnn",
    ],
    [{ status: "all", text: "=x" }, "q=%3Dx"],
  ] as [JobsFilter, string | null][])("are asked for by %j", (filter, query) => {
    expect(searchQuery(filter)).toBe(query);
  });
});

describe("stepsPerSecond", () => {
  it("is told of jobs that train", () => {
    expect(stepsPerSecond(a, 0.25)).toBe(4);
    expect(stepsPerSecond(a, undefined)).toBeNull();
    expect(stepsPerSecond(b, 0.25)).toBeNull();
  });
});
