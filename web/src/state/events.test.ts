import { describe, expect, it } from "vitest";
import { at, makeEvent, makeJob } from "../testing";
import { describeJob, hasCheckpoint, lastPause, restartNote, scaleNote, sinceOf, toneOf } from "./events";

const requested = makeEvent(5, "job.scale_requested");
const waiting = makeEvent(6, "capacity.waiting", { data: { wanted: 4, granted: 2 } });

describe("scaleNote", () => {
  it("is silent while observed equals desired, and when the job does not run", () => {
    expect(scaleNote(makeJob(), [])).toBeNull();
    expect(scaleNote(makeJob({ desired_workers: 4, status: "paused" }), [requested])).toBeNull();
  });

  it("tells of joining and leaving", () => {
    const up = makeJob({ workers: 3, desired_workers: 4, granted_workers: 4, joining: 1 });
    expect(scaleNote(up, [requested])).toBe("3 → 4, joining…");
    const down = makeJob({ workers: 3, desired_workers: 1, granted_workers: 1 });
    expect(scaleNote(down, [requested])).toBe("3 → 1, leaving…");
  });

  it("tells of a replacement as such, until another number is wished", () => {
    const lost = makeEvent(7, "worker.lost");
    const job = makeJob({ workers: 2, desired_workers: 3, granted_workers: 3, joining: 1 });
    expect(scaleNote(job, [requested, lost])).toBe(
      "2 of 3 train; another worker is starting in place of the lost one.",
    );
    expect(scaleNote(job, [lost, makeEvent(8, "job.scale_requested")])).toBe("2 → 3, joining…");
  });

  it("tells in the scheduler's words why fewer or more are granted than wanted", () => {
    const short = { desired_workers: 4, scheduling: "wants 4, has 2: 0 slots free, held by other" };
    expect(scaleNote(makeJob(short), [requested])).toBe("Wants 4, has 2: 0 slots free, held by other");
    const more = { workers: 4, granted_workers: 4, scheduling: "wants 2, has 4: 2 more from free slots" };
    expect(scaleNote(makeJob(more), [])).toBe("Wants 2, has 4: 2 more from free slots");
  });

  it("tells of missing slots, and no more of them once a new wish was sent", () => {
    const job = makeJob({ workers: 2, desired_workers: 4, granted_workers: 4, joining: 1 });
    expect(scaleNote(job, [requested, waiting])).toContain("2 → 4, 1 joining, waiting for 1 slot:");
    const later = makeEvent(7, "job.scale_requested");
    expect(scaleNote({ ...job, joining: 0 }, [requested, waiting, later])).toBe("2 → 4, joining…");
  });
});

describe("restartNote", () => {
  it("says what scaling costs a job that is restarted for it, and nothing of others", () => {
    const saved = makeEvent(7, "checkpoint.committed", { step: 12 });
    expect(restartNote(makeJob(), [saved])).toBeNull();
    const job = makeJob({ scaling_restarts: true });
    expect(restartNote(job, [])).toContain("from its beginning");
    expect(restartNote(job, [saved])).toContain("from its newest checkpoint (step 12)");
  });
});

describe("describeJob", () => {
  it.each([
    [{ message: "paused at step 4", status: "paused" }, "Paused at step 4"],
    [{ message: "" }, "Training with 2 workers"],
    [
      { message: "x", queue: { position: 2, reason: "needs 4 slots" } },
      "Position 2 in the queue: needs 4 slots",
    ],
    [{ message: "x", queue: { position: null, reason: "needs 4 slots" } }, "Needs 4 slots"],
    [{ message: "", status: "stopping" }, ""],
  ] as const)("%o", (fields, text) => {
    expect(describeJob(makeJob(fields))).toBe(text);
  });
});

describe("lastPause", () => {
  it("is the newest measured one; the start is no pause", () => {
    const formed = (position: number, cause: string, paused_seconds: number | null) =>
      makeEvent(position, "generation.formed", { data: { cause, paused_seconds } });
    expect(lastPause([formed(1, "start", 0)])).toBeNull();
    const events = [
      formed(1, "start", null),
      formed(2, "scale_up", 0.04),
      formed(3, "recovery", 0.3),
      formed(4, "restart", null),
    ];
    expect(lastPause(events)?.seconds).toBe(0.3);
  });
});

describe("sinceOf", () => {
  it("is the time of the last change to the present status", () => {
    const changes = [1, 5].map((position) => makeEvent(position, "job.status", { data: { to: "running" } }));
    expect(sinceOf(makeJob(), changes)).toBe(at(5));
    expect(sinceOf(makeJob({ status: "queued", started_at: null }), changes)).toBe(at(0));
  });
});

describe("toneOf", () => {
  it.each([
    ["worker.lost", {}, "bad"],
    ["change.failed", {}, "bad"],
    ["job.status", { to: "failed" }, "bad"],
    ["job.status", { to: "succeeded" }, "good"],
    ["job.status", { to: "running" }, "plain"],
    ["generation.formed", {}, "change"],
    ["something.new", {}, "plain"],
  ])("%s %o is %s", (kind, data, tone) => {
    expect(toneOf(makeEvent(1, kind, { data }))).toBe(tone);
  });
});

describe("hasCheckpoint", () => {
  const told = (position: number, kind: string, checkpoint_id: string) =>
    makeEvent(position, kind, { data: { checkpoint_id } });

  it("is what was committed and neither deleted nor found corrupt", () => {
    expect(hasCheckpoint([makeEvent(1, "generation.formed")])).toBe(false);
    const events = [told(1, "checkpoint.committed", "1-10"), told(2, "checkpoint.committed", "1-20")];
    expect(hasCheckpoint(events)).toBe(true);
    events.push(told(3, "checkpoint.deleted", "1-10"));
    expect(hasCheckpoint(events)).toBe(true);
    events.push(told(4, "checkpoint.corrupt", "1-20"));
    expect(hasCheckpoint(events)).toBe(false);
  });
});
