/** Several jobs, or attempts of one, as lines over one axis. Pure. */

import type { Job, MetricChart, MetricRow } from "../wire";
import {
  batchOf,
  buildLane,
  extentOf,
  type LaneData,
  type MeanOf,
  orderRows,
  type Range,
  TREND_ROWS,
  type XAxis,
} from "./data";
import { rowsOfChart } from "./history";

export interface LineStyle {
  /** A custom property of tokens.css without the dashes. */
  colour: string;
  dash: number[];
}

/** Of each line in turn: told apart by the dash, too, for those who see no difference in colour. */
const STYLES: readonly LineStyle[] = [
  { colour: "chart-loss", dash: [] },
  { colour: "chart-second", dash: [9, 4] },
  { colour: "chart-third", dash: [2, 3] },
  { colour: "chart-speed", dash: [12, 3, 2, 3] },
];

/** Of the line that stands at this place. */
export function styleOf(place: number): LineStyle {
  return STYLES[place % STYLES.length] ?? { colour: "chart-loss", dash: [] };
}

/** A column over the places of all lines; undefined: the line has no point there, which is no gap in it. */
export type Column = (number | null | undefined)[];

/** All lines over the places of each of them. */
export function joinLines(lines: readonly LaneData[]): LaneData {
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const places = new Map(x.map((value, place) => [value, place]));
  const spread = (line: LaneData, values: readonly (number | null)[]): Column => {
    const column: Column = new Array(x.length).fill(undefined);
    for (const [index, value] of values.entries()) column[places.get(line.x[index] ?? 0) ?? 0] = value;
    return column;
  };
  return {
    x,
    y: [],
    trend: null,
    lines: lines.map((line) => ({ y: spread(line, line.y), trend: line.trend && spread(line, line.trend) })),
  };
}

/** What a job or an attempt has measured, and where it begins on the axis. */
export interface Track {
  rows: readonly MetricRow[];
  /** Epoch milliseconds at which its time begins. */
  origin: number;
  /** Samples of a step. */
  batch: number;
}

/** Time counts from the job's own first step: two that ran on different days, or took longer to start, lie over each other. */
export function trackOf(job: Job, chart: MetricChart, axis: XAxis): Track {
  const rows = rowsOfChart(chart);
  const start = Date.parse(job.started_at ?? job.created_at);
  return {
    rows: orderRows(rows, axis),
    origin: rows.reduce(
      (first, row) => Math.min(first, Date.parse(row.time)),
      rows.length > 0 ? Infinity : start,
    ),
    batch: batchOf(job),
  };
}

/** From where the first of them begins to where the last one ends. */
export function rangeOf(tracks: readonly Track[], axis: XAxis): Range {
  const extents = tracks
    .filter((track) => track.rows.length > 0)
    .map((track) => extentOf(track.rows, axis, track.origin, track.batch));
  if (extents.length === 0) return [0, 1];
  return [Math.min(...extents.map((one) => one[0])), Math.max(...extents.map((one) => one[1]))];
}

export type Read = (row: MetricRow) => number | null | undefined;

export interface LinesChoice {
  axis: XAxis;
  range: Range;
  maxPoints: number;
  isSmooth: boolean;
  isTrendByWorkers?: boolean;
  meanOf?: MeanOf;
}

/** What one of them has measured. */
export function laneOf({ rows, origin, batch }: Track, read: Read, choice: LinesChoice): LaneData {
  const { isSmooth, ...how } = choice;
  const measured = rows.filter((row) => read(row) !== undefined);
  const hasTrend = isSmooth && measured.length > TREND_ROWS;
  return buildLane(measured, read, { ...how, origin, batch, hasTrend });
}

/** The same of all of them. */
export function buildLines(tracks: readonly Track[], read: Read, choice: LinesChoice): LaneData {
  return joinLines(tracks.map((track) => laneOf(track, read, choice)));
}

/** Whether a logarithmic axis can show all of it. */
function isPositive(data: LaneData): boolean {
  const columns = data.lines ? data.lines.map((line) => line.y) : [data.y];
  return columns.every((column) =>
    column.every((value) => value === null || value === undefined || value > 0),
  );
}

/** How a lane is drawn where a logarithmic axis is wished for: as usual, and saying so, where that cannot show all of it. */
export function logOf(isWished: boolean, data: LaneData): { isLog: boolean; note?: string } {
  if (!isWished || isPositive(data)) return { isLog: isWished };
  return { isLog: false, note: "linear: a value is 0 or less" };
}

/** What a line reads at a place: its last point before, as long as it goes on. Without a place: where it ends. */
export function readingAt(column: Column, place: number | null): number | null {
  const isPoint = (value: number | null | undefined) => value !== undefined;
  if (place === null) return column.findLast(isPoint) ?? null;
  if (!column.slice(place).some(isPoint)) return null;
  return column.slice(0, place + 1).findLast(isPoint) ?? null;
}
