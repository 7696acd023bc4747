/** The list of all jobs: a pure state machine over snapshots, deltas and older pages. */

import { type Point, withPoint } from "../charts/spark";
import { isFinal, type Job, STATUSES, type Status } from "../wire";

export interface JobsState {
  /** False until the first snapshot: the list is loading, not empty. */
  isLoaded: boolean;
  /** Counts the snapshots; each is a new look at the whole list. */
  snapshots: number;
  /** Cursor of the page after the newest snapshot; null: there is none. */
  next: string | null;
  /** Whether all jobs are known, by the snapshot or by the pages behind it. */
  isWhole: boolean;
  jobs: ReadonlyMap<string, Job>;
  /** Those known from before the newest snapshot and told by nothing since: they may have ended, or be deleted. */
  unconfirmed: ReadonlySet<string>;
  /** Smoothed seconds a step, by job: what the time left is reckoned from. */
  pace: ReadonlyMap<string, number>;
  /** The course of the loss, by job. */
  losses: ReadonlyMap<string, readonly Point[]>;
}

export type JobsAction =
  | { type: "snapshot"; items: Job[]; next: string | null }
  | { type: "job"; job: Job }
  | { type: "deleted"; id: string }
  /** A page of older jobs: all that lie below the cursor `after`, down to `next`. */
  | { type: "older"; items: Job[]; after: string; next: string | null }
  /** Jobs that a search found, wherever they lie. */
  | { type: "found"; items: Job[] }
  /** All that is open beyond the snapshot, pages and search, was read again since. */
  | { type: "reread" };

export const NO_JOBS: JobsState = {
  isLoaded: false,
  snapshots: 0,
  next: null,
  isWhole: false,
  jobs: new Map(),
  unconfirmed: new Set(),
  pace: new Map(),
  losses: new Map(),
};

/** Weight of the newest step in the pace: steady enough to read, quick enough to follow a scaling within seconds. */
const PACE_WEIGHT = 0.3;

export function reduceJobs(state: JobsState, actions: JobsAction[]): JobsState {
  const jobs = new Map(state.jobs);
  const unconfirmed = new Set(state.unconfirmed);
  const pace = new Map(state.pace);
  const losses = new Map(state.losses);
  const forget = (id: string) => {
    for (const known of [jobs, unconfirmed, pace, losses]) known.delete(id);
  };
  let { isLoaded, snapshots, next, isWhole } = state;
  for (const action of actions) {
    if (action.type === "deleted") {
      forget(action.id);
      continue;
    }
    if (action.type === "reread") {
      for (const id of unconfirmed) forget(id);
      continue;
    }
    if (action.type === "snapshot") {
      for (const id of idsBetween(jobs, null, action.next)) jobs.delete(id);
      for (const id of jobs.keys()) unconfirmed.add(id);
      isLoaded = true;
      snapshots += 1;
      next = action.next;
      isWhole = next === null;
    }
    const items = action.type === "job" ? [action.job] : action.items;
    if (action.type === "older") {
      isWhole ||= action.next === null;
      // What the page tells stays as it is: a message may have told it anew while the page was on its way.
      const told = new Set(items.map((job) => job.id));
      for (const id of idsBetween(jobs, action.after, action.next)) if (!told.has(id)) forget(id);
    }
    for (const job of items) {
      unconfirmed.delete(job.id);
      if (isNews(jobs.get(job.id), job)) jobs.set(job.id, job);
      updatePace(pace, job);
      updateLoss(losses, job);
    }
  }
  return { isLoaded, snapshots, next, isWhole, jobs, unconfirmed, pace, losses };
}

/** A page is the whole truth about its span: what it leaves out there was deleted. Cursors are ids, which rise with time. */
function idsBetween(jobs: ReadonlyMap<string, Job>, after: string | null, next: string | null): string[] {
  return [...jobs.keys()].filter((id) => (after === null || id < after) && (next === null || id >= next));
}

function isNews(known: Job | undefined, job: Job): boolean {
  return !known || Date.parse(job.updated_at) >= Date.parse(known.updated_at);
}

function updatePace(pace: Map<string, number>, job: Job): void {
  const seconds = job.metrics.step_seconds;
  if (isFinal(job.status)) pace.delete(job.id);
  else if (typeof seconds === "number" && seconds > 0) {
    const before = pace.get(job.id);
    pace.set(job.id, before === undefined ? seconds : before + PACE_WEIGHT * (seconds - before));
  }
}

/** Lists tell the course so far; each message that follows adds a point. */
function updateLoss(losses: Map<string, readonly Point[]>, job: Job): void {
  const { loss } = job.metrics;
  const known = losses.get(job.id) ?? [];
  if (job.loss_history) losses.set(job.id, job.loss_history);
  else if (typeof loss === "number" && known.at(-1)?.[0] !== job.step)
    losses.set(job.id, withPoint(known, job.step, loss));
}

/** Steps in a second, or null where the job does not train. */
export function stepsPerSecond(job: Job, paceSeconds: number | undefined): number | null {
  return job.status === "running" && paceSeconds ? 1 / paceSeconds : null;
}

/** Seconds to go, or null where it cannot be known. */
export function timeLeft(job: Job, paceSeconds: number | undefined): number | null {
  if (job.status !== "running" || job.total_steps === null || paceSeconds === undefined) return null;
  return Math.max(0, job.total_steps - job.step) * paceSeconds;
}

export interface JobsFilter {
  status: "all" | "active" | Status;
  text: string;
}

/** The filter that an address tells, such as `?status=failed&q=team%3Dvision`; what makes no sense is left out. */
export function readFilter(search: string): JobsFilter {
  const told = new URLSearchParams(search);
  const status = (["active", ...STATUSES] as const).find((name) => name === told.get("status"));
  return { status: status ?? "all", text: told.get("q") ?? "" };
}

/** The same filter for an address: nothing where all jobs are shown. */
export function filterQuery(filter: JobsFilter): string {
  const told = new URLSearchParams();
  if (filter.status !== "all") told.set("status", filter.status);
  if (filter.text.trim() !== "") told.set("q", filter.text);
  return told.size > 0 ? `?${told}` : "";
}

/**
 * What to ask the service for where not all jobs are at hand; null: the filter lets all pass. The service finds a part of
 * the name, a project and labels; of several words it is asked for the longest, and `selectJobs` looks at the rest.
 */
export function searchQuery(filter: JobsFilter): string | null {
  const told = new URLSearchParams();
  if (filter.status === "active") told.set("status", STATUSES.filter((one) => !isFinal(one)).join(","));
  else if (filter.status !== "all") told.set("status", filter.status);
  let longest = "";
  for (const word of filter.text.split(/\s+/).filter(Boolean)) {
    const label = /^([^="\\]+)=(.+)$/.exec(word);
    if (label?.[1] === "project") told.set("project", label[2] ?? "");
    else if (label) told.append("label", word);
    else if (word.length > longest.length) longest = word;
  }
  if (longest !== "") told.set("q", longest.slice(0, 63));
  return told.size > 0 ? told.toString() : null;
}

/** Where no job passes the filter. Beyond those at hand the service has looked, which reads less than `selectJobs`. */
export function emptySentence(state: JobsState, filter: JobsFilter): string {
  const none = "No job matches this filter.";
  if (state.isWhole || filter.text.trim() === "") return none;
  return `${none} Older jobs were searched by name, project and labels only.`;
}

/** Newest first; the text is searched in name, id, project, labels and the sentence that tells what the job does. */
export function selectJobs(state: JobsState, filter: JobsFilter): Job[] {
  const needles = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  return [...state.jobs.values()]
    .filter(
      (job) => matchesStatus(job, filter.status) && needles.every((needle) => haystack(job).includes(needle)),
    )
    .sort((a, b) =>
      a.created_at === b.created_at ? compare(b.id, a.id) : compare(b.created_at, a.created_at),
    );
}

function matchesStatus(job: Job, wanted: JobsFilter["status"]): boolean {
  return wanted === "all" || (wanted === "active" ? !isFinal(job.status) : job.status === wanted);
}

function haystack(job: Job): string {
  const labels = Object.entries(job.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  return [job.name, job.id, `project=${job.project}`, job.message ?? "", job.reason ?? "", ...labels]
    .join(" ")
    .toLowerCase();
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** How many jobs stand in each status, for the filter. */
export function countByStatus(state: JobsState): Map<Status, number> {
  const counts = new Map<Status, number>();
  for (const job of state.jobs.values()) counts.set(job.status, (counts.get(job.status) ?? 0) + 1);
  return counts;
}
