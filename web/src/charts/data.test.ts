import { describe, expect, it } from "vitest";
import { at, makeJob, makeRow } from "../testing";
import {
  axesOf,
  buildLane,
  extentOf,
  metricNames,
  movingAverage,
  orderRows,
  originOf,
  thin,
  visibleSpan,
} from "./data";

const ORIGIN = Date.parse(at(0));
const rows = [1, 2, 3, 4, 5].map((step) => makeRow(step));
const choice = { axis: "step", origin: ORIGIN, range: [0, 10], maxPoints: 1000, hasTrend: false } as const;

describe("buildLane", () => {
  it("takes only rows that have the metric, and leaves a gap where the value is not finite", () => {
    const sparse = [
      makeRow(1, { values: { accuracy: 0.5 } }),
      makeRow(2),
      makeRow(3, { values: { accuracy: null } }),
    ];
    const lane = buildLane(sparse, (row) => row.values.accuracy, choice);
    expect(lane).toEqual({ x: [1, 3], y: [0.5, null], trend: null });
    const odd = buildLane([makeRow(1, { values: { loss: Number.NaN } })], (row) => row.values.loss, choice);
    expect(odd.y).toEqual([null]);
  });

  it("places rows by time since the origin", () => {
    expect(buildLane(rows, (row) => row.workers, { ...choice, axis: "time" }).x).toEqual([1, 2, 3, 4, 5]);
  });

  it("keeps one neighbour on each side of the visible range", () => {
    expect(buildLane(rows, (row) => row.step, { ...choice, range: [2.5, 3.5] }).x).toEqual([2, 3, 4]);
  });

  it("makes the trend of means where rows stand for several, each stretch counting once", () => {
    // Of each stretch the least and the greatest; every fourth one is of equal values and has one point.
    const points = Array.from({ length: 90 }, (_, stretch) =>
      stretch % 4 === 3
        ? [{ value: 1000, mean: [1000, 1] as const }]
        : [200, 1000].map((value) => ({ value, mean: [996, 0.5] as const })),
    ).flat();
    const thinned = points.map(({ value, mean }, step) =>
      makeRow(step + 1, { values: { loss: value }, means: { loss: mean } }),
    );
    const read = (row: (typeof thinned)[number]) => row.values.loss;
    const how = { ...choice, range: [0, 200], hasTrend: true } as const;
    const lane = buildLane(thinned, read, { ...how, meanOf: (row) => row.means?.loss });
    expect(lane.y).toEqual(points.map((point) => point.value));
    const middle = lane.trend?.slice(20, -20) ?? [];
    expect(middle.length).toBeGreaterThan(100);
    for (const value of middle) expect(value).toBeCloseTo(997, 0);
    expect(buildLane(thinned, read, how).trend?.[75]).toBeLessThan(700);
  });

  it("begins the trend anew where the worker count changes, when asked to", () => {
    const speeds = [...Array(30).keys()].map((step) =>
      makeRow(step + 1, {
        workers: step < 20 ? 1 : 2,
        values: { samples_per_second: step < 20 ? 100 : 200 },
      }),
    );
    const read = (row: (typeof speeds)[number]) => row.values.samples_per_second;
    const lane = buildLane(speeds, read, {
      ...choice,
      range: [0, 40],
      hasTrend: true,
      isTrendByWorkers: true,
    });
    expect(lane.trend?.[19]).toBeCloseTo(100);
    expect(lane.trend?.[20]).toBeCloseTo(200);
  });
});

describe("thin", () => {
  it("leaves short columns alone", () => {
    expect(thin([1, 2, 3], 0, 3, 10)).toEqual([0, 1, 2]);
  });

  it("keeps every peak, the ends, and the order", () => {
    const y = Array.from({ length: 10_000 }, (_, index) =>
      index === 4321 ? 99 : index === 8765 ? -99 : Math.sin(index),
    );
    const kept = thin(y, 0, y.length, 400);
    expect(kept.length).toBeLessThanOrEqual(400);
    expect(kept).toContain(4321);
    expect(kept).toContain(8765);
    expect(kept[0]).toBe(0);
    expect(kept.at(-1)).toBe(9999);
    expect(kept).toEqual([...new Set(kept)].sort((a, b) => a - b));
  });

  it("copes with gaps only", () => {
    const y = Array.from({ length: 100 }, () => null);
    expect(thin(y, 0, 100, 8).length).toBeGreaterThan(1);
  });
});

describe("movingAverage", () => {
  it("is exact for a constant, and skips gaps", () => {
    expect(movingAverage([3, null, 3, 3])).toEqual([3, null, 3, 3]);
    expect(movingAverage([])).toEqual([]);
  });

  it("does not lag behind a slope, and ends at the newest value", () => {
    const slope = Array.from({ length: 500 }, (_, index) => 500 - index);
    for (const [index, value] of movingAverage(slope).entries()) expect(value).toBeCloseTo(500 - index);
  });

  it("calms what is noisy", () => {
    const noisy = Array.from({ length: 100 }, (_, index) => index % 2);
    expect(movingAverage(noisy)[50]).toBeCloseTo(0.5, 0);
  });

  it("never looks across a change of group", () => {
    const groups = [...Array(10).fill(1), ...Array(10).fill(2)];
    expect(movingAverage([...Array(10).fill(5), ...Array(10).fill(9)], groups)).toEqual([
      ...Array(10).fill(5),
      ...Array(10).fill(9),
    ]);
  });
});

describe("axis", () => {
  it("has room for a single point and for none", () => {
    expect(extentOf([], "step", 0)).toEqual([0, 1]);
    expect(extentOf([makeRow(7)], "step", 0)).toEqual([7, 8]);
    expect(extentOf(rows, "time", ORIGIN)).toEqual([1, 5]);
  });

  it("orders by time on the time axis: rows of an abandoned attempt come first", () => {
    const stale = makeRow(9, { time: at(1) });
    const fresh = makeRow(8, { time: at(5) });
    expect(orderRows([fresh, stale], "time")).toEqual([stale, fresh]);
    expect(orderRows([fresh, stale], "step")).toEqual([fresh, stale]);
  });

  it("begins in time with the earliest row, which may be of a later step", () => {
    const again = makeRow(1, { time: at(9) });
    expect(originOf([again, makeRow(5)], "time")).toBe(Date.parse(at(5)));
    expect(originOf([], "time")).toBe(0);
  });

  it("finds the visible span of an empty column", () => {
    expect(visibleSpan([], [0, 1])).toEqual([0, 0]);
  });

  it("names loss first and leaves out what has its own place", () => {
    const values = {
      samples: 1,
      step_seconds: 1,
      epoch: 1,
      accuracy: 1,
      loss: 1,
      samples_per_second: 1,
      aux: 1,
    };
    expect(metricNames([makeRow(1, { values })])).toEqual(["loss", "accuracy", "aux"]);
  });
});

describe("axesOf", () => {
  const ours = makeJob({ spec: { backend: "rubato", batch: { global_size: 256 } } });
  const rays = makeJob({ spec: { backend: "ray_train", batch: { global_size: 256 } } });

  it("counts samples only where all jobs have a batch that Rubato cuts", () => {
    expect(axesOf([ours])).toEqual(["step", "time", "samples"]);
    expect(axesOf([rays])).toEqual(["step", "time"]);
    expect(axesOf([ours, rays])).toEqual(["step", "time"]);
  });
});
