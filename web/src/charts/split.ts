/** Where the time of a step goes: data, compute, and what is left of the step, as areas on each other. Pure. */

import type { MetricRow } from "../wire";
import { type LaneChoice, type LaneData, movingAverage, thin, visibleSpan, xOf } from "./data";

/** The highest area first, as the lane paints them. */
export const LAYERS = [
  { colour: "chart-workers", name: "communication and waiting" },
  { colour: "chart-speed", name: "compute" },
  { colour: "chart-third", name: "data" },
];

/**
 * What one worker measured of each step. What is neither data nor compute is the exchange and the wait for others, less
 * what of the exchange ran beside the compute. Null where the rows do not say it.
 */
export function buildSplit(rows: readonly MetricRow[], choice: LaneChoice): LaneData | null {
  const x: number[] = [];
  const totals: (number | null)[] = [];
  const busy: (number | null)[] = [];
  const data: (number | null)[] = [];
  const workers: number[] = [];
  // A thinned row has only some of the three: the others stand where they stood last.
  let [total, compute, wait]: (number | null)[] = [null, null, null];
  for (const { values, ...row } of rows) {
    total = values.step_seconds ?? total ?? null;
    compute = values.compute_seconds ?? compute ?? null;
    wait = values.data_seconds ?? wait ?? null;
    if (total === null || compute === null || wait === null) continue;
    x.push(xOf(row, choice.axis, choice.origin, choice.batch));
    workers.push(row.workers);
    totals.push(Math.max(total, compute + wait));
    busy.push(compute + wait);
    data.push(wait);
  }
  if (x.length === 0) return null;
  const [top, middle, low] = [totals, busy, data].map((y) =>
    choice.hasTrend ? movingAverage(y, workers) : y,
  );
  const kept = thin(totals, ...visibleSpan(x, choice.range), choice.maxPoints);
  const pick = (y: (number | null)[] | undefined) => kept.map((index) => y?.[index] ?? null);
  return {
    x: kept.map((index) => x[index] ?? 0),
    y: pick(top),
    trend: null,
    below: [pick(middle), pick(low)],
  };
}
