import { describe, expect, it } from "vitest";
import { at, makeEvent } from "../testing";
import type { JobEvent } from "../wire";
import { type Marker, markersOf, placeMarkers } from "./markers";

const formed = (
  position: number,
  cause: string,
  data: Record<string, unknown> = {},
  fields: Partial<JobEvent> = {},
) =>
  makeEvent(position, "generation.formed", {
    generation: position,
    data: {
      cause,
      workers: 3,
      from_workers: 1,
      step: 100,
      paused_seconds: 0.041,
      redone_microbatches: 0,
      ...data,
    },
    ...fields,
  });
const lost = makeEvent(4, "worker.lost", {
  step: 120,
  data: { worker_id: "w2", rank: 1, signal: "SIGKILL", exit_code: null },
});

describe("markersOf", () => {
  it("marks scalings with the measured pause, and not the start", () => {
    const markers = markersOf(
      [formed(1, "start"), formed(2, "scale_up"), formed(3, "scale_down")],
      "step",
      0,
    );
    expect(markers.map((marker) => [marker.kind, marker.x, marker.pause])).toEqual([
      ["up", 100, "41\u00a0ms"],
      ["down", 100, "41\u00a0ms"],
    ]);
    expect(markers[0]?.title).toBe("Scaled up 1 → 3 workers");
    expect(markers[0]?.details).toEqual(["paused 41\u00a0ms", "step 100 · generation 2"]);
  });

  it("tells at a recovery who was lost, how, and what was done again", () => {
    const recovery = formed(5, "recovery", { paused_seconds: 0.3, redone_microbatches: 3 });
    const [marker] = markersOf([lost, recovery], "step", 0);
    expect(marker?.kind).toBe("failure");
    expect(marker?.details.slice(0, 3)).toEqual([
      "w2 (rank 1) lost: SIGKILL",
      "paused 300\u00a0ms",
      "3 microbatches computed again",
    ]);
  });

  it("tells a replacement from a scaling", () => {
    const [marker] = markersOf([formed(2, "replace", { from_workers: 2 })], "step", 0);
    expect(marker).toMatchObject({ kind: "replace", title: "Replaced a lost worker 2 → 3 workers" });
  });

  it("says who is slow, and what was moved", () => {
    const why = "w2 takes 3.0x as long per microbatch; 2 of its 4 microbatches go to w1";
    const told = makeEvent(2, "rebalanced", { message: why, data: { worker_id: "w2", rank: 1 } });
    const [marker] = markersOf([told, formed(3, "rebalance", { from_workers: 3 })], "step", 0);
    expect(marker).toMatchObject({ kind: "balance", title: "Moved microbatches between workers" });
    expect(marker?.details[0]).toBe(why);
  });

  it("says who hung, where and for how long, and not the signal that ended it", () => {
    const cause = "hang: no progress for 31 s, in step 7; the limit there is 30 s";
    const hung = makeEvent(4, "worker.lost", {
      data: { worker_id: "w2", rank: 1, signal: "SIGKILL", cause, hang: { stage: "compute", seconds: 31 } },
    });
    const [marker] = markersOf([hung, formed(5, "recovery")], "step", 0);
    expect(marker?.details[0]).toBe(`w2 (rank 1) lost: ${cause}`);
  });

  it("marks a loss that is not mended yet, without a pause", () => {
    const [marker] = markersOf([formed(1, "start"), lost], "step", 0);
    expect(marker).toMatchObject({ kind: "failure", x: 120, pause: "", title: "Worker lost" });
  });

  it("marks the start of a later attempt as a resumption", () => {
    expect(markersOf([formed(1, "start", {}, { attempt: 2 })], "step", 0)[0]?.kind).toBe("resume");
  });

  it("places by time when asked", () => {
    expect(markersOf([formed(7, "scale_up")], "time", Date.parse(at(2)))[0]?.x).toBe(5);
  });
});

describe("placeMarkers", () => {
  const marker = (x: number, pause = "41\u00a0ms"): Marker => ({
    position: x,
    x,
    kind: "up",
    pause,
    title: "",
    details: [],
  });
  const place = (...xs: number[]) =>
    placeMarkers(
      xs.map((x) => marker(x)),
      [0, 1000],
      1000,
    );

  it("labels what has room, in one row", () => {
    expect(place(100, 500).map((one) => [one.left, one.row, one.hasLabel])).toEqual([
      [10, 0, true],
      [50, 0, true],
    ]);
  });

  it("uses the second row, then bare glyphs, when it gets narrow", () => {
    expect(place(100, 130, 160).map((one) => [one.row, one.hasLabel])).toEqual([
      [0, true],
      [1, true],
      [0, false],
    ]);
  });

  it("puts what cannot be pointed at apart into one chip", () => {
    const [only, ...rest] = place(100, 101, 105);
    expect(rest).toEqual([]);
    expect(only?.markers).toHaveLength(3);
    expect(only?.hasLabel).toBe(false);
  });

  it("leaves out what is not in sight, and holds the newest one at the edge", () => {
    expect(
      placeMarkers([marker(5), marker(90), marker(101)], [10, 100], 500).map((one) => Math.round(one.left)),
    ).toEqual([89, 100]);
  });

  it("never overlaps two chips of a row", () => {
    const placed = placeMarkers(
      Array.from({ length: 40 }, (_, index) => marker(index * 17)),
      [0, 700],
      700,
    );
    for (const row of [0, 1]) {
      const spans = placed
        .filter((one) => one.row === row)
        .map((one) => [one.left * 7, one.hasLabel ? 58 : 26] as const);
      for (const [index, [px, size]] of spans.entries()) {
        const next = spans[index + 1];
        if (next) expect(px + size / 2).toBeLessThanOrEqual(next[0] - next[1] / 2);
      }
    }
  });
});
