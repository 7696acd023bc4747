/** What a job did with its time, as its events tell: spans of phases, what they cost, and what happened at which moment. Pure. */

import { sentence } from "../text/format";
import type { Job, JobEvent, Status } from "../wire";

export type Phase =
  | "queued"
  | "starting"
  | "training"
  | "scaling"
  | "repairing"
  | "redone"
  | "saving"
  | "paused"
  | "stopping";

/** Times are milliseconds since 1970; spans follow each other without a gap. */
export interface Span {
  phase: Phase;
  from: number;
  to: number;
}

const PHASES: Partial<Record<Status, Phase>> = {
  queued: "queued",
  starting: "starting",
  running: "training",
  recovering: "repairing",
  pausing: "stopping",
  paused: "paused",
  stopping: "stopping",
};

/** When the story ends: with the job, else now; the browser's clock may be behind the service's. */
export function endOf(job: Job, events: readonly JobEvent[], now: number): number {
  if (job.finished_at) return Date.parse(job.finished_at);
  return Math.max(now, Date.parse(job.updated_at), Date.parse(events.at(-1)?.time ?? job.created_at));
}

/** The phases of a job in order, from its submission to `end`; none where the service no longer has its events. */
export function phasesOf(job: Job, events: readonly JobEvent[], end: number): Span[] {
  if (!events.some((event) => event.kind === "job.status")) return statusSpan(job, end);
  const base: Span[] = [];
  let phase: Phase | undefined = "queued";
  let from = Date.parse(job.created_at);
  for (const event of events) {
    if (event.kind !== "job.status") continue;
    const at = Date.parse(event.time);
    if (phase && at > from) base.push({ phase, from, to: at });
    phase = PHASES[event.data.to as Status];
    from = Math.max(from, at);
  }
  if (phase && end > from) base.push({ phase, from, to: end });
  return overlay(base, [...pausesOf(events), ...redoneOf(events), ...stallsOf(events)]);
}

/** Of a job that has no event of its status yet: it waits since it was submitted. */
function statusSpan(job: Job, end: number): Span[] {
  const from = Date.parse(job.created_at);
  return job.status === "queued" && end > from ? [{ phase: "queued", from, to: end }] : [];
}

/** The standstill at each change of membership. After a loss it begins there; else it ends before its event is told. */
function pausesOf(events: readonly JobEvent[]): Span[] {
  const spans: Span[] = [];
  let lostAt: number | null = null;
  for (const event of events) {
    const at = Date.parse(event.time);
    if (event.kind === "worker.lost" && event.data.rank !== null) lostAt ??= at;
    if (event.kind !== "generation.formed") continue;
    const paused = numberOf(event.data.paused_seconds);
    if (paused !== null && paused > 0) {
      const from: number = lostAt ?? at - paused * 1000;
      spans.push({ phase: lostAt === null ? "scaling" : "repairing", from, to: from + paused * 1000 });
    }
    lostAt = null;
  }
  return spans;
}

/**
 * Time spent on steps that did not count: a generation that begins at step S after step R was reached trains S..R again.
 * When S was reached first is read off the events around it that name a step, in between by even pace.
 */
function redoneOf(events: readonly JobEvent[]): Span[] {
  const spans: Span[] = [];
  let reached: { step: number; at: number }[] = [];
  for (const event of events) {
    const at = Date.parse(event.time);
    const first = event.kind === "generation.formed" ? numberOf(event.data.step) : null;
    const last = reached.at(-1);
    if (first !== null && last && last.step >= first) {
      spans.push({ phase: "redone", from: timeOf(reached, first - 1), to: last.at });
      reached = reached.filter((one) => one.step < first);
    }
    const step = first === null ? numberOf(event.step) : first - 1;
    if (step !== null && step >= (reached.at(-1)?.step ?? 0)) reached.push({ step, at });
  }
  return spans;
}

function timeOf(reached: readonly { step: number; at: number }[], step: number): number {
  const after = reached.findIndex((one) => one.step >= step);
  const [a, b] = [reached[after - 1], reached[after]];
  if (!b) return reached.at(-1)?.at ?? 0;
  if (!a || b.step === a.step) return b.at;
  return a.at + ((step - a.step) / (b.step - a.step)) * (b.at - a.at);
}

/** What saving held up; the writing itself goes on beside the training. */
function stallsOf(events: readonly JobEvent[]): Span[] {
  const spans: Span[] = [];
  for (const event of events) {
    const stall = event.kind === "checkpoint.committed" ? numberOf(event.data.stall_seconds) : null;
    const to = Date.parse(event.time);
    if (stall) spans.push({ phase: "saving", from: to - stall * 1000, to });
  }
  return spans;
}

/** Put spans over the training they interrupted. Of two that overlap the earlier counts, so that nothing counts twice. */
function overlay(base: readonly Span[], over: readonly Span[]): Span[] {
  const sorted = [...over].sort((a, b) => a.from - b.from);
  const result: Span[] = [];
  let next = 0;
  for (const span of base) {
    if (span.phase !== "training") {
      result.push(span);
      continue;
    }
    let { from } = span;
    while (next < sorted.length) {
      const top = sorted[next] as Span;
      if (top.from >= span.to) break;
      const [start, stop] = [Math.max(top.from, from), Math.min(top.to, span.to)];
      if (stop > start) {
        if (start > from) result.push({ phase: "training", from, to: start });
        result.push({ phase: top.phase, from: start, to: stop });
        from = stop;
      }
      if (top.to > span.to) break;
      next += 1;
    }
    if (span.to > from) result.push({ phase: "training", from, to: span.to });
  }
  return result;
}

export interface TimeUse {
  /** Seconds in which the job held slots. */
  held: number;
  /** Seconds of these in which no step was trained that counts. */
  lost: number;
  /** `1 - lost / held`; null before the job held a slot. */
  goodput: number | null;
  /** Seconds lost, by what to, the most first. */
  causes: [phase: Phase, seconds: number][];
}

/** Without slots nothing can be lost. */
const WITHOUT_SLOTS: ReadonlySet<Phase> = new Set(["queued", "paused"]);

/** How the definition is told to people. */
export const GOODPUT_MEANS =
  "Of the time in which the job held slots (not queued, not paused), the share in which it trained steps that count. " +
  "Lost: starting, standstills at scalings, repairs and restarts, steps that were trained again, stalls for " +
  "checkpoints, stopping.";

/** Goodput: of the time in which the job held slots, the share in which it trained steps that count. */
export function useOf(spans: readonly Span[]): TimeUse {
  const seconds = new Map<Phase, number>();
  for (const { phase, from, to } of spans)
    if (!WITHOUT_SLOTS.has(phase)) seconds.set(phase, (seconds.get(phase) ?? 0) + (to - from) / 1000);
  const trained = seconds.get("training") ?? 0;
  seconds.delete("training");
  const causes = [...seconds].sort((a, b) => b[1] - a[1]);
  const lost = causes.reduce((sum, [, cost]) => sum + cost, 0);
  const held = trained + lost;
  return { held, lost, goodput: held > 0 ? trained / held : null, causes };
}

export type MomentKind = "scaling" | "failure" | "checkpoint" | "attempt";

export interface Moment {
  at: number;
  kind: MomentKind;
  text: string;
}

const MOMENTS: Record<string, MomentKind> = {
  "worker.lost": "failure",
  "job.restarting": "failure",
  "checkpoint.failed": "failure",
  diverged: "failure",
  "checkpoint.committed": "checkpoint",
};
const SCALINGS = new Set(["scale_up", "scale_down", "replace", "rebalance"]);

/** What is marked on the timeline: scalings, failures, checkpoints, and attempts after the first. */
export function momentsOf(events: readonly JobEvent[]): Moment[] {
  const moments: Moment[] = [];
  for (const event of events) {
    const kind = momentKind(event);
    if (kind) moments.push({ at: Date.parse(event.time), kind, text: sentence(event.message) });
  }
  return moments;
}

function momentKind(event: JobEvent): MomentKind | undefined {
  if (event.kind === "generation.formed")
    return SCALINGS.has(String(event.data.cause)) ? "scaling" : undefined;
  if (event.kind === "attempt.acquired") return (event.attempt ?? 1) > 1 ? "attempt" : undefined;
  return MOMENTS[event.kind];
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
