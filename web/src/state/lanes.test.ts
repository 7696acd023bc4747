import { describe, expect, it } from "vitest";
import { at, makeEvent } from "../testing";
import type { JobEvent } from "../wire";
import { generationStarts, lanesOf } from "./lanes";

const start = Date.parse(at(0));
const worker = (seconds: number, what: string, id: string, data: Record<string, unknown> = {}) =>
  makeEvent(seconds, `worker.${what}`, {
    message: `${id} was ${what}: SIGKILL`,
    data: { worker_id: id, ...data },
  });
const formed = (seconds: number, generation: number, ...ids: string[]) =>
  makeEvent(seconds, "generation.formed", {
    generation,
    data: { cause: "scale_up", members: ids.map((worker_id, rank) => ({ worker_id, rank })) },
  });
const shown = (events: JobEvent[], end: number) =>
  lanesOf(events, start + end * 1000).map((lane) => [
    lane.workerId,
    lane.end,
    ...lane.spans.map(
      (one) =>
        `${one.state} ${(one.from - start) / 1000}-${(one.to - start) / 1000} ${one.rank} ${one.generations}`,
    ),
  ]);

describe("lanesOf", () => {
  it("tells of each worker when it joined, its ranks by generation, and its end", () => {
    const events = [
      worker(1, "started", "w1", { node: "a" }),
      worker(4, "ready", "w1"),
      formed(5, 1, "w1"),
      worker(6, "started", "w2"),
      formed(9, 2, "w1", "w2"),
      worker(12, "lost", "w1"),
      formed(13, 3, "w2"),
    ];
    expect(shown(events, 20)).toEqual([
      ["w1", "lost", "starting 1-4 null null", "ready 4-5 null null", "training 5-12 0 1,2"],
      ["w2", null, "starting 6-9 null null", "training 9-13 1 2,2", "training 13-20 0 3,3"],
    ]);
    expect(lanesOf(events, start)[0]).toMatchObject({ node: "a", endText: "w1 was lost: SIGKILL" });
  });

  it("shows who stays behind a switch as leaving, until it has left", () => {
    const events = [formed(1, 1, "w1", "w2"), formed(5, 2, "w1"), worker(7, "left", "w2")];
    expect(shown(events, 9)[1]).toEqual([
      "w2",
      "left",
      "starting 1-1 null null",
      "training 1-5 1 1,1",
      "leaving 5-7 null null",
    ]);
  });

  it("ends all with the job, and takes a name that comes again for another life", () => {
    const over = makeEvent(6, "job.status", { data: { to: "paused" } });
    const events = [formed(1, 1, "w1"), over, worker(8, "started", "w1"), worker(9, "started", "w1")];
    expect(shown(events, 20).map(([id, end]) => [id, end])).toEqual([
      ["w1", "over"],
      ["w1", "over"],
      ["w1", null],
    ]);
  });

  it("bears 256 workers over 200 generations, a lane each", () => {
    const ids = Array.from({ length: 256 }, (_, index) => `w${index}`);
    const events = Array.from({ length: 200 }, (_, index) => formed(index, index + 1, ...ids));
    const lanes = lanesOf(events, start + 1e6);
    expect(lanes).toHaveLength(256);
    expect(lanes.every((lane) => lane.spans.length === 2)).toBe(true);
    expect(generationStarts(events)).toHaveLength(199);
  });
});
