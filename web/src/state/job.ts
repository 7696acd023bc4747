/** One job, its events and its metric rows: a pure state machine. Replays after a reconnect change nothing. */

import { isFinal, type Job, type JobEvent, type MetricRow, type Status } from "../wire";

export interface JobState {
  job: Job | null;
  events: readonly JobEvent[];
  /** One row a step, by step. */
  rows: readonly MetricRow[];
  /** How many of the rows came one by one; the others are points of the service's chart. */
  single: number;
}

export type JobAction =
  | { type: "job"; job: Job }
  | { type: "events"; items: JobEvent[] }
  | { type: "metrics"; items: MetricRow[] }
  | { type: "chart"; items: MetricRow[] };

export const NO_JOB: JobState = { job: null, events: [], rows: [], single: 0 };

/** The newest rows stay beside a chart as they were read: its points do not tell the pace. */
const KEPT_ROWS = 500;

export function reduceJob(state: JobState, action: JobAction): JobState {
  switch (action.type) {
    case "job":
      return isOlder(action.job, state.job) ? state : { ...state, job: action.job };
    case "events":
      return { ...state, events: appendEvents(state.events, action.items) };
    case "metrics": {
      const rows = mergeRows(state.rows, action.items);
      return { ...state, rows, single: state.single + rows.length - state.rows.length };
    }
    case "chart": {
      const kept = state.single > 0 ? state.rows.slice(-Math.min(state.single, KEPT_ROWS)) : [];
      return { ...state, rows: mergeRows(action.items, kept), single: kept.length };
    }
  }
}

function isOlder(job: Job, known: Job | null): boolean {
  return known !== null && Date.parse(job.updated_at) < Date.parse(known.updated_at);
}

/** Positions of a job's events have no gaps and only grow, so the last one known says what is new. */
export function appendEvents(known: readonly JobEvent[], items: JobEvent[]): readonly JobEvent[] {
  let last = known.at(-1)?.position ?? 0;
  const fresh: JobEvent[] = [];
  for (const item of items) {
    if (item.position <= last) continue;
    last = item.position;
    fresh.push(item);
  }
  return fresh.length > 0 ? [...known, ...fresh] : known;
}

/**
 * One row a step, ordered by step. A step that was trained again (after a restart from a checkpoint) comes back with a
 * greater position and replaces the old row.
 */
export function mergeRows(known: readonly MetricRow[], items: MetricRow[]): readonly MetricRow[] {
  if (items.length === 0) return known;
  const lastStep = known.at(-1)?.step ?? -1;
  if (isRising(items, lastStep)) return [...known, ...items];
  const bySteps = new Map(known.map((row) => [row.step, row]));
  let hasChanged = false;
  for (const row of items) {
    const before = bySteps.get(row.step);
    if (before && before.position >= row.position) continue;
    bySteps.set(row.step, row);
    hasChanged = true;
  }
  return hasChanged ? [...bySteps.values()].sort((a, b) => a.step - b.step) : known;
}

function isRising(items: MetricRow[], lastStep: number): boolean {
  let last = lastStep;
  for (const row of items) {
    if (row.step <= last) return false;
    last = row.step;
  }
  return true;
}

/** Seconds between the first start and the end, or now; null before the start. */
export function durationOf(job: Job, now: number): number | null {
  if (!job.started_at || (isFinal(job.status) && !job.finished_at)) return null;
  const end = job.finished_at ? Date.parse(job.finished_at) : now;
  return Math.max(0, end - Date.parse(job.started_at)) / 1000;
}

/** Rows that the present pace is measured over: enough to be steady, few enough to follow a scaling. */
const PACE_ROWS = 30;

/** Median seconds a step of the newest rows trained with the present worker count. */
export function paceOf(rows: readonly MetricRow[]): number | undefined {
  const newest = rows.at(-1);
  if (!newest) return undefined;
  const seconds = rows
    .slice(-PACE_ROWS)
    .filter((row) => row.workers === newest.workers)
    .map((row) => row.values.step_seconds)
    .filter((value): value is number => typeof value === "number" && value > 0)
    .sort((a, b) => a - b);
  return seconds[Math.floor(seconds.length / 2)];
}

export type Verb = "pause" | "resume" | "checkpoint" | "cancel";

const CAN: Record<Verb, readonly Status[]> = {
  pause: ["queued", "starting", "running", "recovering"],
  resume: ["paused"],
  checkpoint: ["running"],
  cancel: ["queued", "starting", "running", "recovering", "pausing", "paused", "stopping"],
};

/** Whether a verb makes sense in a status; the service has the last word. */
export function canAsk(verb: Verb, status: Status): boolean {
  return CAN[verb].includes(status);
}
