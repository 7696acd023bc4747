/** What the board of one job draws: all attempts as one line, one of them, or a line for each. Pure. */

import type { MetricRow } from "../wire";
import { type LaneData, orderRows, originOf, type Range, TREND_ROWS, type XAxis, xOf } from "./data";
import { buildLines, type LinesChoice, laneOf, type Read, type Track } from "./lines";
import { buildSplit } from "./split";

/** The attempts that still have rows: of a step that was trained again the service keeps the last. */
export function attemptsOf(rows: readonly MetricRow[]): number[] {
  const known = new Set(rows.map((row) => row.attempt).filter((attempt) => attempt > 0));
  return [...known].sort((a, b) => a - b);
}

/** One track of all rows where no attempt is chosen, else one of each: its time counts from its own first row. */
export function tracksOf(
  rows: readonly MetricRow[],
  attempts: readonly number[],
  axis: XAxis,
  batch: number,
): Track[] {
  const parts =
    attempts.length > 0 ? attempts.map((attempt) => rows.filter((row) => row.attempt === attempt)) : [rows];
  return parts.map((part) => ({ rows: orderRows(part, axis), origin: originOf(part, axis), batch }));
}

/** The rows between two places of the axis. */
export function rowsWithin(tracks: readonly Track[], axis: XAxis, range: Range): Set<MetricRow> {
  const isInside = ({ origin, batch }: Track, row: MetricRow) => {
    const x = xOf(row, axis, origin, batch);
    return x >= range[0] && x <= range[1];
  };
  return new Set(tracks.flatMap((track) => track.rows.filter((row) => isInside(track, row))));
}

export interface Score {
  metrics: { name: string; data: LaneData }[];
  speed: LaneData;
  /** Null: no row tells it, or areas of several would cover each other. */
  split: LaneData | null;
  workers: LaneData;
}

/** The lanes of a job, from one track or several. */
export function buildScore(tracks: readonly Track[], metrics: readonly string[], choice: LinesChoice): Score {
  const only = tracks.length === 1 ? tracks[0] : undefined;
  const draw = (read: Read, how: LinesChoice) =>
    only ? laneOf(only, read, how) : buildLines(tracks, read, how);
  const drawMetric = (name: string, how: LinesChoice) =>
    draw((row) => row.values[name], { ...how, meanOf: (row) => row.means?.[name] });
  return {
    metrics: metrics.map((name) => ({ name, data: drawMetric(name, choice) })),
    speed: drawMetric("samples_per_second", { ...choice, isTrendByWorkers: true }),
    split: only
      ? buildSplit(only.rows, {
          ...choice,
          ...only,
          hasTrend: choice.isSmooth && only.rows.length > TREND_ROWS,
        })
      : null,
    workers: draw((row) => row.workers, { ...choice, isSmooth: false }),
  };
}
