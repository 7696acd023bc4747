/** Where the time of a step goes: data, compute, and what is left of the step, as areas on each other. Pure. */

import type { MetricRow } from "../wire";
import { type LaneChoice, type LaneData, movingAverage, thin, visibleSpan, xOf } from "./data";

/** The highest area first, as the lane paints them. */
export const LAYERS = [
  { colour: "chart-workers", name: "communication and waiting" },
  { colour: "chart-speed", name: "compute" },
  { colour: "chart-second", name: "data" },
];

const PARTS = ["step_seconds", "compute_seconds", "data_seconds"] as const;

/** The heights of the areas: the step, compute and data, data. */
type Heights = [total: number, busy: number, data: number];

/**
 * What one worker measured of each step. What is neither data nor compute is the exchange and the wait for others, less
 * what of the exchange ran beside the compute. Null where the rows do not say it.
 */
export function buildSplit(rows: readonly MetricRow[], choice: LaneChoice): LaneData | null {
  const x: number[] = [];
  const heights: Heights[] = [];
  const means: Heights[] = [];
  const weights: number[] = [];
  const workers: number[] = [];
  // A thinned row has only some of the three: the others stand where they stood last.
  const last: (Measured | undefined)[] = [undefined, undefined, undefined];
  for (const row of rows) {
    let weight = 0;
    for (const [place, name] of PARTS.entries()) {
      const value = row.values[name];
      if (typeof value !== "number") continue;
      const [mean, share] = row.means?.[name] ?? [value, 1];
      last[place] = { value, mean };
      weight += share;
    }
    const [total, compute, wait] = last;
    if (!total || !compute || !wait || weight === 0) continue;
    x.push(xOf(row, choice.axis, choice.origin, choice.batch));
    workers.push(row.workers);
    weights.push(weight);
    heights.push(stack(total.value, compute.value, wait.value));
    means.push(stack(total.mean, compute.mean, wait.mean));
  }
  if (x.length === 0) return null;
  const column = (place: 0 | 1 | 2) =>
    choice.hasTrend
      ? movingAverage(
          means.map((one) => one[place]),
          workers,
          weights,
        )
      : heights.map((one) => one[place]);
  const totals = heights.map((one) => one[0]);
  const kept = thin(totals, ...visibleSpan(x, choice.range), choice.maxPoints);
  const pick = (y: (number | null)[]) => kept.map((index) => y[index] ?? null);
  return {
    x: kept.map((index) => x[index] ?? 0),
    y: pick(column(0)),
    trend: null,
    below: [pick(column(1)), pick(column(2))],
  };
}

interface Measured {
  value: number;
  mean: number;
}

function stack(total: number, compute: number, wait: number): Heights {
  return [Math.max(total, compute + wait), compute + wait, wait];
}
