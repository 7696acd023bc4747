import { describe, expect, it } from "vitest";
import { at, makeRow } from "../testing";
import { rangeOf, readingAt } from "./lines";
import { attemptsOf, buildScore, rowsWithin, tracksOf } from "./score";

/** Two attempts of one job: the second began a hundred seconds later, with one worker more. */
const rows = [1, 2, 3, 4, 5].map((step) =>
  makeRow(step, {
    time: at(step < 4 ? step : 100 + 2 * step),
    attempt: step < 4 ? 1 : 2,
    workers: step < 4 ? 1 : 2,
    values: {
      loss: 1 / step,
      samples_per_second: 10 * step,
      step_seconds: 2,
      compute_seconds: 1,
      data_seconds: 0,
    },
  }),
);
const choice = { axis: "time", range: [0, 1000], maxPoints: 100, isSmooth: false } as const;

describe("attemptsOf", () => {
  it("names those that still have rows, and none before it is known who trained them", () => {
    expect(attemptsOf(rows)).toEqual([1, 2]);
    expect(attemptsOf([makeRow(1, { attempt: 0 }), makeRow(2, { attempt: 3 })])).toEqual([3]);
  });
});

describe("tracksOf", () => {
  it("is one track of everything where none is chosen", () => {
    const tracks = tracksOf(rows, [], "time", 1);
    expect(tracks.map((track) => track.rows.length)).toEqual([5]);
    expect(rangeOf(tracks, "time")).toEqual([0, 109]);
  });

  it("lets the time of each attempt begin with its own first row", () => {
    const tracks = tracksOf(rows, [2, 1], "time", 1);
    expect(tracks.map((track) => track.rows.map((row) => row.step))).toEqual([
      [4, 5],
      [1, 2, 3],
    ]);
    expect(rangeOf(tracks, "time")).toEqual([0, 2]);
    expect(rangeOf(tracksOf(rows, [2], "step", 1), "step")).toEqual([4, 5]);
    expect(rangeOf(tracksOf(rows, [2], "samples", 64), "samples")).toEqual([256, 320]);
  });

  it("finds the rows of a stretch by the axis of their own attempt, and none of the others", () => {
    const seen = rowsWithin(tracksOf(rows, [2], "time", 1), "time", [0, 1]);
    expect([...seen].map((row) => row.step)).toEqual([4]);
    const both = rowsWithin(tracksOf(rows, [1, 2], "time", 1), "time", [0, 1]);
    expect([...both].map((row) => row.step)).toEqual([1, 2, 4]);
  });
});

describe("buildScore", () => {
  it("draws one track as lanes of one line, with the split of a step's time", () => {
    const score = buildScore(tracksOf(rows, [], "step", 1), ["loss"], { ...choice, axis: "step" });
    expect(score.metrics[0]?.data).toMatchObject({ x: [1, 2, 3, 4, 5], trend: null });
    expect(score.metrics[0]?.data.lines).toBeUndefined();
    expect(score.workers.y).toEqual([1, 1, 1, 2, 2]);
    expect(score.split?.y).toEqual([2, 2, 2, 2, 2]);
  });

  it("smooths throughput that was thinned out by its means, not by its extremes", () => {
    const thinned = Array.from({ length: 80 }, (_, step) =>
      makeRow(step + 1, {
        values: { samples_per_second: step % 2 ? 1000 : 200 },
        means: { samples_per_second: [996, 0.5] },
      }),
    );
    const how = { ...choice, axis: "step", isSmooth: true } as const;
    expect(buildScore(tracksOf(thinned, [], "step", 1), [], how).speed.trend?.[40]).toBeCloseTo(996);
  });

  it("draws several attempts as a line each, and no areas that would cover each other", () => {
    const score = buildScore(tracksOf(rows, [1, 2], "time", 1), ["loss"], choice);
    const [loss] = score.metrics;
    expect(loss?.data.x).toEqual([0, 1, 2]);
    expect(loss?.data.lines?.map((line) => line.y)).toEqual([
      [1, 1 / 2, 1 / 3],
      [1 / 4, undefined, 1 / 5],
    ]);
    expect(score.speed.lines?.map((line) => readingAt(line.y, null))).toEqual([30, 50]);
    expect(score.workers.lines?.map((line) => readingAt(line.y, 1))).toEqual([1, 2]);
    expect(score.split).toBeNull();
  });

  it("smooths what has rows enough for it, and never a worker count", () => {
    const many = Array.from({ length: 100 }, (_, step) =>
      makeRow(step + 1, { values: step % 50 ? { loss: step } : { loss: step, accuracy: 1 } }),
    );
    const score = buildScore(tracksOf(many, [], "step", 1), ["loss", "accuracy"], {
      ...choice,
      axis: "step",
      isSmooth: true,
    });
    expect(score.metrics.map(({ data }) => data.trend !== null)).toEqual([true, false]);
    expect(score.workers.trend).toBeNull();
  });
});
