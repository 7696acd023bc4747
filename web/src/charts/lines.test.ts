import { describe, expect, it } from "vitest";
import { at, makeJob } from "../testing";
import type { MetricChart, MetricRow } from "../wire";
import { buildLines, joinLines, logOf, rangeOf, readingAt, trackOf } from "./lines";

const chart = (steps: number[], y: number[], name = "loss"): MetricChart => ({
  bucket_steps: 1,
  series: {
    [name]: {
      x: steps,
      y,
      steps,
      times: steps.map((step) => Date.parse(at(step)) / 1000),
      means: y,
      weights: y.map(() => 1),
    },
  },
  position: 9,
});

const loss = (row: MetricRow) => row.values.loss;

const line = (x: number[], y: (number | null)[], trend: (number | null)[] | null = null) => ({ x, y, trend });

describe("joinLines", () => {
  it("puts each line at its places and leaves the others open", () => {
    const joined = joinLines([line([1, 3, 5], [9, null, 7]), line([2, 3], [4, 3], [4, 3.5])]);
    expect(joined.x).toEqual([1, 2, 3, 5]);
    expect(joined.lines?.[0]).toEqual({ y: [9, undefined, null, 7], trend: null });
    expect(joined.lines?.[1]).toEqual({
      y: [undefined, 4, 3, undefined],
      trend: [undefined, 4, 3.5, undefined],
    });
  });

  it("takes jobs without a point", () => {
    expect(joinLines([line([], []), line([1], [2])]).lines?.map((one) => one.y)).toEqual([[undefined], [2]]);
    expect(joinLines([]).x).toEqual([]);
  });
});

describe("readingAt", () => {
  const column = [undefined, 5, undefined, 4, null, 3, undefined];
  it("reads the last point before a place, within the line", () => {
    expect([0, 1, 2, 3, 4, 5].map((place) => readingAt(column, place))).toEqual([null, 5, 5, 4, null, 3]);
  });
  it("reads nothing behind the end, and the end without a place", () => {
    expect(readingAt(column, 6)).toBeNull();
    expect(readingAt(column, null)).toBe(3);
    expect(readingAt([], null)).toBeNull();
  });
});

describe("the lines of several jobs", () => {
  const early = makeJob({ started_at: at(0), spec: { batch: { global_size: 10 } } });
  const late = makeJob({ started_at: at(100), spec: { batch: { global_size: 20 } } });
  const tracks = (axis: "step" | "time" | "samples") => [
    trackOf(early, chart([1, 2, 3], [9, 8, 7]), axis),
    trackOf(late, chart([101, 104], [6, 5]), axis),
    trackOf(late, chart([], []), axis),
  ];

  it("begin in time each with its own first step, and count samples with its own batch", () => {
    expect(rangeOf(tracks("step"), "step")).toEqual([1, 104]);
    expect(rangeOf(tracks("time"), "time")).toEqual([0, 3]);
    expect(rangeOf(tracks("samples"), "samples")).toEqual([10, 2080]);
    expect(rangeOf([], "step")).toEqual([0, 1]);
  });

  it("begin with the first row, also where the job has started anew since", () => {
    const track = trackOf(makeJob({ started_at: at(50) }), chart([1], [9]), "time");
    expect(track.origin).toBe(Date.parse(at(1)));
  });

  it("are one column a job, of those that measured it", () => {
    const choice = { axis: "time" as const, range: [0, 10] as const, maxPoints: 100, isSmooth: true };
    const lines = buildLines(tracks("time"), loss, choice);
    expect(lines.x).toEqual([0, 1, 2, 3]);
    expect(lines.lines?.map((line) => readingAt(line.y, null))).toEqual([7, 5, null]);
    expect(buildLines(tracks("time"), (row) => row.values.accuracy, choice).x).toEqual([]);
  });

  it("fit a logarithmic axis where no value is zero or less, and else are drawn without one, which is said", () => {
    const choice = { axis: "step" as const, range: [0, 10] as const, maxPoints: 100, isSmooth: false };
    const built = (y: number[]) => buildLines([trackOf(early, chart([1, 2], y), "step")], loss, choice);
    expect(logOf(true, built([1, 2]))).toEqual({ isLog: true });
    expect(logOf(true, built([1, 0]))).toEqual({ isLog: false, note: "linear: a value is 0 or less" });
    expect(logOf(false, built([1, 0]))).toEqual({ isLog: false });
  });
});
