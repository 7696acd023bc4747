/** A long job's past as the service thins it out: few points, and no peak lost. Pure: charts in, rows out. */

import type { JobEvent, Mean, MetricChart, MetricRow } from "../wire";

/** More steps than this are not read one by one. */
export const MOST_ROWS = 5000;

/** Points of each metric that the service is asked for: more than a wide screen shows apart. */
export const CHART_POINTS = 2000;

/** The position of rows that the service thinned out: a row that was read as it is replaces them. */
const THINNED = 0;

/** The points of all metrics as rows, one a step; a row has only those metrics that the service kept there. */
export function rowsOfChart(chart: MetricChart): MetricRow[] {
  const rows = new Map<number, ReturnType<typeof emptyRow>>();
  for (const [name, line] of Object.entries(chart.series)) {
    for (const [index, step] of line.steps.entries()) {
      const row = rows.get(step) ?? emptyRow(step, line.times[index] ?? 0);
      row.values[name] = line.y[index] ?? null;
      row.means[name] = [line.means[index] ?? 0, line.weights[index] ?? 0];
      rows.set(step, row);
    }
  }
  return [...rows.values()].sort((a, b) => a.step - b.step);
}

function emptyRow(step: number, seconds: number): MetricRow & { means: Record<string, Mean> } {
  const time = new Date(seconds * 1000).toISOString();
  return { position: THINNED, step, time, generation: 0, workers: 0, attempt: 0, values: {}, means: {} };
}

/** What a thinned row does not say, who trained it, from the events that tell of each generation. */
export function fillMembership(
  rows: readonly MetricRow[],
  events: readonly JobEvent[],
): readonly MetricRow[] {
  if (!rows.some(isThinned)) return rows;
  const starts = generationSteps(events);
  let next = 0;
  return rows.map((row) => {
    while (next < starts.length && (starts[next]?.first ?? 0) <= row.step) next += 1;
    const { generation, workers, attempt } = starts[next - 1] ?? row;
    return isThinned(row) ? { ...row, generation, workers, attempt } : row;
  });
}

interface GenerationStart {
  first: number;
  generation: number;
  workers: number;
  attempt: number;
}

/** In order of steps; a generation that begins before former ones has trained their steps again. */
function generationSteps(events: readonly JobEvent[]): GenerationStart[] {
  const starts: GenerationStart[] = [];
  for (const event of events) {
    const { step, workers } = event.data;
    if (event.kind !== "generation.formed" || typeof step !== "number" || typeof workers !== "number")
      continue;
    while ((starts.at(-1)?.first ?? -1) >= step) starts.pop();
    starts.push({ first: step, generation: event.generation ?? 0, workers, attempt: event.attempt ?? 1 });
  }
  return starts;
}

export function isThinned(row: MetricRow): boolean {
  return row.position === THINNED;
}

/** The first and the last step between two places of the axis; null where all of them are known as they are. */
export function thinnedSteps(
  rows: readonly MetricRow[],
  isInside: (row: MetricRow) => boolean,
): [first: number, last: number] | null {
  const inside = rows.filter(isInside);
  const [first, last] = [inside[0], inside.at(-1)];
  return first && last && inside.some(isThinned) ? [first.step, last.step] : null;
}

/** A finer look at some of the steps in place of the coarser one. */
export function withDetail(rows: readonly MetricRow[], detail: readonly MetricRow[]): readonly MetricRow[] {
  const [first, last] = [detail[0], detail.at(-1)];
  if (!first || !last) return rows;
  const outside = (row: MetricRow) => row.step < first.step || row.step > last.step || !isThinned(row);
  const known = new Set(rows.filter((row) => !isThinned(row)).map((row) => row.step));
  const fresh = detail.filter((row) => !known.has(row.step));
  return [...rows.filter(outside), ...fresh].sort((a, b) => a.step - b.step);
}
