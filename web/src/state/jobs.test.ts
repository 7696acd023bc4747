import { describe, expect, it } from "vitest";
import { at, makeJob } from "../testing";
import type { Job } from "../wire";
import {
  countByStatus,
  filterQuery,
  type JobsAction,
  type JobsFilter,
  NO_JOBS,
  readFilter,
  reduceJobs,
  selectJobs,
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

  it("knows where older jobs begin, and that a snapshot is new", () => {
    const once = run(full(b, a));
    expect([once.snapshots, once.next]).toEqual([1, "job_a"]);
    const twice = reduceJobs(once, [snapshot(b)]);
    expect([twice.snapshots, twice.next]).toEqual([2, null]);
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
