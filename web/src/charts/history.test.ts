import { describe, expect, it } from "vitest";
import { mergeRows } from "../state/job";
import { at, makeEvent, makeRow } from "../testing";
import { fillMembership, rowsOfChart, thinnedSteps, withDetail } from "./history";
import { buildSplit } from "./split";

const start = Date.parse(at(0)) / 1000;
const half = (mean: number) => ({ means: [mean, mean], weights: [0.5, 0.5] });
const chart = {
  bucket_steps: 64,
  position: 900,
  series: {
    loss: { x: [], steps: [3, 60], times: [start + 3, start + 60], y: [2, 9], ...half(4) },
    accuracy: { x: [], steps: [60, 70], times: [start + 60, start + 70], y: [0.5, 0.6], ...half(0.5) },
  },
};
const formed = (position: number, step: number, workers: number) =>
  makeEvent(position, "generation.formed", { generation: position, data: { step, workers } });

describe("rowsOfChart", () => {
  it("has a row for each step at which some metric has a point", () => {
    expect(rowsOfChart(chart).map((row) => [row.step, row.time, row.values])).toEqual([
      [3, at(3), { loss: 2 }],
      [60, at(60), { loss: 9, accuracy: 0.5 }],
      [70, at(70), { accuracy: 0.6 }],
    ]);
  });

  it("tells what each value counts with in a mean", () => {
    expect(rowsOfChart(chart).map((row) => row.means)).toEqual([
      { loss: [4, 0.5] },
      { loss: [4, 0.5], accuracy: [0.5, 0.5] },
      { accuracy: [0.5, 0.5] },
    ]);
  });

  it("gives way to rows that were read as they are, and does not replace them", () => {
    const known = mergeRows([], rowsOfChart(chart));
    const merged = mergeRows(known, [makeRow(60, { position: 901 })]);
    expect(merged.map((row) => row.position)).toEqual([0, 901, 0]);
    expect(mergeRows(merged, rowsOfChart(chart))).toBe(merged);
  });
});

describe("fillMembership", () => {
  it("tells who trained a step last", () => {
    const events = [formed(1, 1, 2), formed(2, 50, 4), formed(3, 65, 8), formed(4, 40, 1)];
    const filled = fillMembership(rowsOfChart(chart), events);
    expect(filled.map((row) => [row.workers, row.generation])).toEqual([
      [2, 1],
      [1, 4],
      [1, 4],
    ]);
  });

  it("leaves rows alone that say it themselves", () => {
    const rows = [makeRow(3)];
    expect(fillMembership(rows, [formed(1, 1, 7)])).toBe(rows);
  });
});

describe("a closer look", () => {
  it("is asked for where some of what is seen was thinned out", () => {
    const rows = [...rowsOfChart(chart), makeRow(80), makeRow(81)];
    expect(thinnedSteps(rows, (row) => row.step >= 60)).toEqual([60, 81]);
    expect(thinnedSteps(rows, (row) => row.step >= 80)).toBeNull();
  });

  it("takes the place of the coarse one, between its ends", () => {
    const fine = { ...makeRow(62), position: 0 };
    const detail = [{ ...makeRow(58), position: 0 }, fine, { ...makeRow(80), position: 0 }];
    const rows = withDetail([...rowsOfChart(chart), makeRow(80)], detail);
    expect(rows.map((row) => [row.step, row.position])).toEqual([
      [3, 0],
      [58, 0],
      [62, 0],
      [80, 80],
    ]);
  });
});

describe("buildSplit", () => {
  const choice = {
    axis: "samples",
    origin: 0,
    batch: 10,
    range: [0, 100],
    maxPoints: 100,
    hasTrend: false,
  } as const;

  it("stacks data, compute and the rest up to the time of the step", () => {
    const values = { step_seconds: 10, compute_seconds: 6, data_seconds: 1 };
    const lane = buildSplit(
      [makeRow(1, { values }), makeRow(2, { values: { ...values, step_seconds: 5 } })],
      choice,
    );
    expect(lane).toEqual({
      x: [10, 20],
      y: [10, 7],
      trend: null,
      below: [
        [7, 7],
        [1, 1],
      ],
    });
  });

  it("takes what a thinned row leaves out from before it, and is nothing without the measurements", () => {
    const rows = [{ step_seconds: 4 }, { compute_seconds: 1, data_seconds: 1 }, { step_seconds: 3 }];
    const lane = buildSplit(
      rows.map((values, index) => makeRow(index + 1, { values })),
      choice,
    );
    expect(lane?.y).toEqual([4, 3]);
    expect(buildSplit([makeRow(1)], choice)).toBeNull();
  });

  it("smooths what was thinned out by its means, not by its extremes", () => {
    const values = { compute_seconds: 0.5, data_seconds: 0.25 };
    const means = { step_seconds: [1, 0.5], compute_seconds: [0.5, 0.5], data_seconds: [0.25, 0.5] } as const;
    const rows = Array.from({ length: 100 }, (_, step) =>
      makeRow(step + 1, { values: { ...values, step_seconds: step % 2 ? 9 : 1 }, means }),
    );
    const lane = buildSplit(rows, { ...choice, range: [0, 2000], hasTrend: true });
    expect(lane?.y.every((value) => value === 1)).toBe(true);
    expect(lane?.below).toEqual([Array(100).fill(0.75), Array(100).fill(0.25)]);
  });
});
