import { describe, expect, it } from "vitest";
import { at, makeEvent, makeJob } from "../testing";
import type { JobEvent } from "../wire";
import { endOf, momentsOf, phasesOf, useOf } from "./story";

/** Seconds after the start of the tests' calendar. */
const s = (time: number) => (time - Date.parse(at(0))) / 1000;
const end = (seconds: number) => Date.parse(at(seconds));
const job = makeJob({ created_at: at(0) });

let position = 0;
const event = (seconds: number, kind: string, fields: Partial<JobEvent> = {}) => {
  position += 1;
  return makeEvent(position, kind, { time: at(seconds), ...fields });
};
const status = (seconds: number, to: string) => event(seconds, "job.status", { data: { to } });
const formed = (seconds: number, cause: string, step: number, paused: number | null) =>
  event(seconds, "generation.formed", { step, data: { cause, step, paused_seconds: paused } });
const lost = (seconds: number, step: number | null = null) =>
  event(seconds, "worker.lost", { step, data: { worker_id: "w2", rank: 1 } });

const shown = (events: JobEvent[], until: number) =>
  phasesOf(job, events, end(until)).map((span) => [span.phase, s(span.from), s(span.to)]);

const BEGUN = [status(10, "starting"), status(20, "running"), formed(21, "start", 1, null)];

describe("phasesOf", () => {
  it("follows the status, and is open to the end", () => {
    const events = [...BEGUN, status(60, "pausing"), status(62, "paused"), status(70, "queued")];
    expect(shown(events, 80)).toEqual([
      ["queued", 0, 10],
      ["starting", 10, 20],
      ["training", 20, 60],
      ["stopping", 60, 62],
      ["paused", 62, 70],
      ["queued", 70, 80],
    ]);
  });

  it("is a wait before anything is told, and nothing where the events are gone", () => {
    expect(phasesOf(makeJob({ status: "queued", created_at: at(0) }), [], end(5))).toHaveLength(1);
    expect(phasesOf(makeJob({ status: "succeeded" }), [], end(5))).toEqual([]);
  });

  it("puts the pause of a scaling before its event, and that of a loss behind the loss", () => {
    const events = [...BEGUN, formed(40, "scale_up", 20, 0.5), lost(50), formed(56, "recovery", 30, 2)];
    expect(shown(events, 60).slice(2)).toEqual([
      ["training", 20, 39.5],
      ["scaling", 39.5, 40],
      ["training", 40, 50],
      ["repairing", 50, 52],
      ["training", 52, 60],
    ]);
  });

  it("counts a standstill once that the status tells, too", () => {
    const events = [
      ...BEGUN,
      lost(50),
      status(51, "recovering"),
      status(58, "running"),
      formed(59, "recovery", 30, 9),
    ];
    expect(shown(events, 60).slice(2)).toEqual([
      ["training", 20, 50],
      ["repairing", 50, 51],
      ["repairing", 51, 58],
      ["repairing", 58, 59],
      ["training", 59, 60],
    ]);
  });

  it("tells which time went into steps that were trained again", () => {
    const saved = event(40, "checkpoint.committed", { step: 100, data: { stall_seconds: 1 } });
    const events = [...BEGUN, saved, lost(50, 200), status(50, "recovering"), status(55, "running")];
    expect(shown([...events, formed(56, "restart", 151, 6)], 60).slice(2)).toEqual([
      ["training", 20, 39],
      ["saving", 39, 40],
      ["training", 40, 45],
      ["redone", 45, 50],
      ["repairing", 50, 55],
      ["repairing", 55, 56],
      ["training", 56, 60],
    ]);
  });
});

describe("useOf", () => {
  it("is the share of the time with slots in which steps were trained that count", () => {
    const events = [...BEGUN, formed(40, "scale_up", 20, 2), status(50, "pausing"), status(52, "paused")];
    const use = useOf(phasesOf(job, events, end(100)));
    expect(use).toEqual({
      held: 42,
      lost: 14,
      goodput: 28 / 42,
      causes: [
        ["starting", 10],
        ["scaling", 2],
        ["stopping", 2],
      ],
    });
  });

  it("is not known before the job held a slot", () => {
    expect(useOf([{ phase: "queued", from: 0, to: 9000 }])).toMatchObject({ goodput: null, lost: 0 });
  });
});

describe("endOf", () => {
  it("is the end of a job, else now, and never before what was told last", () => {
    expect(s(endOf(makeJob({ finished_at: at(9) }), [], end(50)))).toBe(9);
    expect(s(endOf(job, [], end(50)))).toBe(50);
    expect(s(endOf(job, [status(70, "running")], end(50)))).toBe(70);
  });
});

describe("momentsOf", () => {
  it("marks scalings, failures, checkpoints and later attempts, and not the start", () => {
    const events = [
      event(1, "attempt.acquired", { attempt: 1 }),
      formed(2, "start", 1, null),
      formed(3, "scale_down", 9, 0.1),
      lost(4),
      event(5, "checkpoint.committed"),
      event(6, "attempt.acquired", { attempt: 2 }),
    ];
    expect(momentsOf(events).map((moment) => [s(moment.at), moment.kind])).toEqual([
      [3, "scaling"],
      [4, "failure"],
      [5, "checkpoint"],
      [6, "attempt"],
    ]);
  });
});
