/** From metric rows to what a lane draws. Pure: rows in, columns out. */

import type { Job, Mean, MetricRow } from "../wire";
import type { Column } from "./lines";

export type XAxis = "step" | "time" | "samples";
export type Range = readonly [min: number, max: number];

/** Columns of one lane. `y` holds what was measured; `trend` its moving average, where one is wanted. */
export interface LaneData {
  x: number[];
  y: (number | null)[];
  trend: (number | null)[] | null;
  /** Areas below `y`, each up to its own line, the highest first. */
  below?: (number | null)[][];
  /** Instead of `y`: several lines over the same places. */
  lines?: { y: Column; trend: Column | null }[];
}

/** A trend over fewer rows says nothing. */
export const TREND_ROWS = 60;

/** Metrics with a place of their own on the page; the rest are the user's. */
const BUILT_IN = new Set([
  "samples",
  "step_seconds",
  "compute_seconds",
  "data_seconds",
  "samples_per_second",
  "epoch",
]);

/** Names of the metrics that can have a lane: loss first, then the user's by name. */
export function metricNames(rows: readonly MetricRow[]): string[] {
  const names = new Set<string>();
  for (const row of rows) for (const name of Object.keys(row.values)) names.add(name);
  return orderNames(names);
}

/** Those of them that can have a lane, in that order. */
export function orderNames(names: Iterable<string>): string[] {
  const own = [...new Set(names)].filter((name) => !BUILT_IN.has(name));
  return own.sort((a, b) => Number(b === "loss") - Number(a === "loss") || (a < b ? -1 : 1));
}

interface SpecOfBatch {
  backend?: unknown;
  batch?: { global_size?: unknown };
}

/** Samples of a step, as the spec says. */
export function batchOf(job: Job): number {
  const size = (job.spec as SpecOfBatch | undefined)?.batch?.global_size;
  return typeof size === "number" && size > 0 ? size : 1;
}

/** Over which axes jobs can be drawn: how many samples a step of Ray Train has, its program alone knows. */
export function axesOf(jobs: readonly Job[]): XAxis[] {
  const isCounted = jobs.every((job) => (job.spec as SpecOfBatch | undefined)?.backend !== "ray_train");
  return isCounted ? ["step", "time", "samples"] : ["step", "time"];
}

/** Where a row stands on the axis: its step, its samples at `batch` a step, or seconds since `origin` (epoch milliseconds). */
export function xOf(row: Pick<MetricRow, "step" | "time">, axis: XAxis, origin: number, batch = 1): number {
  if (axis === "time") return (Date.parse(row.time) - origin) / 1000;
  return axis === "samples" ? row.step * batch : row.step;
}

/** Rows in the order of the axis: an old row that is not yet trained again has a later step but an earlier time. */
export function orderRows(rows: readonly MetricRow[], axis: XAxis): readonly MetricRow[] {
  if (axis !== "time") return rows;
  return [...rows].sort((a, b) => Date.parse(a.time) - Date.parse(b.time));
}

/** Where the axis of time begins, in epoch milliseconds: at its first row. */
export function originOf(rows: readonly MetricRow[], axis: XAxis): number {
  const first = orderRows(rows, axis)[0];
  return first ? Date.parse(first.time) : 0;
}

/** Start and end of the axis; never empty, so that a first point has room. */
export function extentOf(rows: readonly MetricRow[], axis: XAxis, origin: number, batch = 1): Range {
  const first = rows[0];
  const last = rows.at(-1);
  if (!first || !last) return [0, 1];
  const min = xOf(first, axis, origin, batch);
  const max = xOf(last, axis, origin, batch);
  return max > min ? [min, max] : [min, min + 1];
}

export interface LaneChoice {
  axis: XAxis;
  origin: number;
  /** Samples of a step. */
  batch?: number;
  range: Range;
  /** Points the lane can show apart: about two a pixel. */
  maxPoints: number;
  hasTrend: boolean;
  /** Begin the trend anew where the worker count changes: throughput jumps there, and a tail would hide it. */
  isTrendByWorkers?: boolean;
  meanOf?: MeanOf;
}

/** What a row counts with in the trend, where it stands for several: a trend of extremes would be no mean. */
export type MeanOf = (row: MetricRow) => Mean | undefined;

/** The columns of one metric inside the visible range, thinned without losing a peak. */
export function buildLane(
  rows: readonly MetricRow[],
  read: (row: MetricRow) => number | null | undefined,
  choice: LaneChoice,
): LaneData {
  const x: number[] = [];
  const y: (number | null)[] = [];
  const means: (number | null)[] = [];
  const weights: number[] = [];
  const workers: number[] = [];
  for (const row of rows) {
    const value = read(row);
    if (value === undefined) continue;
    const measured = value === null || Number.isFinite(value) ? value : null;
    const [mean, weight] = choice.meanOf?.(row) ?? [measured, 1];
    x.push(xOf(row, choice.axis, choice.origin, choice.batch));
    y.push(measured);
    means.push(mean);
    weights.push(weight);
    workers.push(row.workers);
  }
  const groups = choice.isTrendByWorkers ? workers : undefined;
  const trend = choice.hasTrend ? movingAverage(means, groups, weights) : null;
  const [from, to] = visibleSpan(x, choice.range);
  const kept = thin(y, from, to, choice.maxPoints);
  return {
    x: kept.map((index) => x[index] ?? 0),
    y: kept.map((index) => y[index] ?? null),
    trend: trend && kept.map((index) => trend[index] ?? null),
  };
}

/** Indexes [from, to) inside the range and one neighbour on each side, so that lines leave the picture and not end in it. */
export function visibleSpan(x: readonly number[], range: Range): [from: number, to: number] {
  let from = 0;
  while (from < x.length && (x[from] ?? 0) < range[0]) from += 1;
  let to = x.length;
  while (to > from && (x[to - 1] ?? 0) > range[1]) to -= 1;
  return [Math.max(0, from - 1), Math.min(x.length, to + 1)];
}

/** Min-max thinning: of every bucket the first, least, greatest and last index stay, in order. */
export function thin(y: readonly (number | null)[], from: number, to: number, maxPoints: number): number[] {
  const length = to - from;
  if (length <= maxPoints) return Array.from({ length }, (_, index) => from + index);
  const buckets = Math.max(1, Math.floor(maxPoints / 4));
  const kept: number[] = [];
  for (let bucket = 0; bucket < buckets; bucket += 1) {
    const start = from + Math.floor((bucket * length) / buckets);
    const end = from + Math.floor(((bucket + 1) * length) / buckets);
    const chosen = new Set([start, extreme(y, start, end, -1), extreme(y, start, end, 1), end - 1]);
    kept.push(...[...chosen].sort((a, b) => a - b));
  }
  return kept;
}

function extreme(y: readonly (number | null)[], start: number, end: number, sign: 1 | -1): number {
  let best = start;
  let bestValue = Number.NEGATIVE_INFINITY;
  for (let index = start; index < end; index += 1) {
    const value = y[index];
    if (value !== null && value !== undefined && value * sign > bestValue) {
      best = index;
      bestValue = value * sign;
    }
  }
  return best;
}

/**
 * Mean over a window around each value. The window grows with the length of the run and shrinks symmetrically at the
 * ends, so that the trend neither lags behind a falling loss nor ends anywhere but at the newest value. It never looks
 * across a change of `groups`. A value counts with its weight; without weights once.
 */
export function movingAverage(
  y: readonly (number | null)[],
  groups?: readonly unknown[],
  weights?: readonly number[],
): (number | null)[] {
  const reach = Math.min(100, Math.max(3, Math.floor(y.length / 60)));
  const trend: (number | null)[] = [];
  for (let start = 0; start < y.length; ) {
    let end = groups ? start + 1 : y.length;
    while (end < y.length && groups?.[end] === groups?.[start]) end += 1;
    trend.push(...averageWithin(y.slice(start, end), reach, weights?.slice(start, end)));
    start = end;
  }
  return trend;
}

function averageWithin(
  y: readonly (number | null)[],
  reach: number,
  weights?: readonly number[],
): (number | null)[] {
  const sums = [0];
  const counts = [0];
  for (const [index, value] of y.entries()) {
    const weight = value === null ? 0 : (weights?.[index] ?? 1);
    sums.push((sums[index] ?? 0) + weight * (value ?? 0));
    counts.push((counts[index] ?? 0) + weight);
  }
  return y.map((value, index) => {
    if (value === null) return null;
    const near = Math.min(reach, index, y.length - 1 - index);
    const [from, to] = [index - near, index + near + 1];
    return ((sums[to] ?? 0) - (sums[from] ?? 0)) / ((counts[to] ?? 0) - (counts[from] ?? 0));
  });
}
