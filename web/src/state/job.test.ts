import { describe, expect, it } from "vitest";
import { at, makeEvent, makeJob, makeRow } from "../testing";
import { isFinal, STATUSES } from "../wire";
import { appendEvents, canAsk, durationOf, mergeRows, NO_JOB, paceOf, reduceJob } from "./job";

const steps = (rows: readonly { step: number }[]) => rows.map((row) => row.step);

describe("appendEvents", () => {
  const events = [1, 2, 3, 4].map((position) => makeEvent(position, "job.status"));

  it("has nothing missing and nothing doubled, wherever the stream was cut and replayed", () => {
    for (let cut = 0; cut <= events.length; cut += 1) {
      for (let from = 0; from <= cut; from += 1) {
        const known = appendEvents([], events.slice(0, cut));
        expect(appendEvents(known, events.slice(from))).toEqual(events);
      }
    }
  });

  it("is the same list when nothing is new, so that nothing is drawn again", () => {
    const known = appendEvents([], events);
    expect(appendEvents(known, events.slice(1))).toBe(known);
  });
});

describe("mergeRows", () => {
  it("appends in order", () => {
    expect(steps(mergeRows([makeRow(1)], [makeRow(2), makeRow(3)]))).toEqual([1, 2, 3]);
  });

  it("ignores a replay", () => {
    const rows = [makeRow(1), makeRow(2)];
    expect(mergeRows(rows, [makeRow(2)])).toBe(rows);
    expect(mergeRows(rows, [])).toBe(rows);
  });

  it("lets a step that was trained again take the old one's place", () => {
    const rows = [makeRow(1), makeRow(2), makeRow(3)];
    const again = makeRow(2, { position: 4, attempt: 2, values: { loss: 9 } });
    const merged = mergeRows(rows, [again, makeRow(4, { position: 5 })]);
    expect(steps(merged)).toEqual([1, 2, 3, 4]);
    expect(merged[1]).toEqual(again);
    expect(mergeRows(merged, [makeRow(2)])).toBe(merged);
  });
});

describe("reduceJob", () => {
  it("takes a job with its spec as it is told, which may have been changed, and ignores an older view", () => {
    const first = reduceJob(NO_JOB, { type: "job", job: makeJob({ spec: { workers: { max: 2 } } }) });
    const job = makeJob({ step: 11, updated_at: at(9), spec: { workers: { max: 4 } } });
    const second = reduceJob(first, { type: "job", job });
    expect(second.job).toBe(job);
    expect(reduceJob(second, { type: "job", job: makeJob() })).toBe(second);
  });

  it("has the points of a chart in place of what lies behind, and the newest rows as they are", () => {
    const items = Array.from({ length: 6000 }, (_, index) => makeRow(index + 1));
    const full = reduceJob(NO_JOB, { type: "metrics", items });
    expect(full.single).toBe(6000);
    const points = [1, 3000, 5990, 6000].map((step) => makeRow(step, { position: 0 }));
    const thinned = reduceJob(full, { type: "chart", items: points });
    expect(steps(thinned.rows)).toEqual([1, 3000, ...steps(items.slice(-500))]);
    expect(thinned.rows.at(-1)).toEqual(items.at(-1));
    expect(thinned.single).toBe(500);
    const again = reduceJob(thinned, { type: "metrics", items: [...items.slice(-2), makeRow(6001)] });
    expect([again.rows.length, again.single]).toEqual([503, 501]);
    expect(reduceJob(NO_JOB, { type: "chart", items: points })).toMatchObject({ rows: points, single: 0 });
  });

  it("puts events and rows beside each other", () => {
    const state = reduceJob(reduceJob(NO_JOB, { type: "metrics", items: [makeRow(1)] }), {
      type: "events",
      items: [makeEvent(1, "job.submitted")],
    });
    expect(state.rows).toHaveLength(1);
    expect(state.events).toHaveLength(1);
  });
});

describe("paceOf", () => {
  it("is the median of the newest rows with the present worker count", () => {
    const slow = [1, 2, 3].map((step) => makeRow(step, { workers: 1, values: { step_seconds: 9 } }));
    const quick = [1, 5, 2].map((seconds, index) =>
      makeRow(4 + index, { values: { step_seconds: seconds } }),
    );
    expect(paceOf([...slow, ...quick])).toBe(2);
    expect(paceOf([])).toBeUndefined();
  });
});

describe("durationOf", () => {
  it("ends with the job, goes on while it runs, and is none before the start", () => {
    const now = Date.parse(at(61));
    expect(durationOf(makeJob({ started_at: at(1) }), now)).toBe(60);
    expect(durationOf(makeJob({ status: "failed", started_at: at(1), finished_at: at(11) }), now)).toBe(10);
    expect(durationOf(makeJob({ status: "queued", started_at: null }), now)).toBeNull();
  });
});

describe("canAsk", () => {
  it("offers to resume only what is paused: while it pauses the service refuses", () => {
    expect(STATUSES.filter((status) => canAsk("resume", status))).toEqual(["paused"]);
    expect(canAsk("pause", "pausing")).toBe(false);
  });

  it("offers to cancel whatever has not ended", () => {
    for (const status of STATUSES) expect(canAsk("cancel", status)).toBe(!isFinal(status));
  });
});
