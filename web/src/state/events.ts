/** What can be read from a job's events. Pure. */

import { formatCount, plural, sentence } from "../text/format";
import type { Job, JobEvent } from "../wire";

/** When the job came to its present status. */
export function sinceOf(job: Job, events: readonly JobEvent[]): string {
  const change = events.findLast((event) => event.kind === "job.status" && event.data.to === job.status);
  return change?.time ?? job.finished_at ?? job.started_at ?? job.created_at;
}

/** What the job does or waits for, in a sentence. */
export function describeJob(job: Job): string {
  if (job.failure) return sentence(job.failure.message);
  if (job.queue?.reason) {
    return job.queue.position
      ? `Position ${job.queue.position} in the queue: ${job.queue.reason}`
      : sentence(job.queue.reason);
  }
  if (job.message) return sentence(job.message);
  if (job.status === "running" && job.workers > 0) return `Training with ${plural(job.workers, "worker")}`;
  return job.status === "starting" ? "Starting the workers" : "";
}

export interface Pause {
  seconds: number;
  /** The first one after it. */
  step: number | null;
}

/** The newest measured pause, if the membership ever changed. */
export function lastPause(events: readonly JobEvent[]): Pause | null {
  for (const event of [...events].reverse()) {
    if (event.kind !== "generation.formed" || event.data.cause === "start") continue;
    const { paused_seconds: seconds, step } = event.data;
    if (typeof seconds === "number") return { seconds, step: typeof step === "number" ? step : event.step };
  }
  return null;
}

export type EventTone = "plain" | "good" | "change" | "bad";

const GOOD = new Set(["checkpoint.committed"]);
const CHANGE = new Set([
  "generation.formed",
  "rebalanced",
  "job.scale_requested",
  "controller.attached",
  "attempt.acquired",
]);
const BAD = new Set([
  "worker.lost",
  "change.failed",
  "checkpoint.failed",
  "checkpoint.corrupt",
  "job.restarting",
  "non_finite",
  "diverged",
]);

/** How loudly an event is shown. */
export function toneOf(event: JobEvent): EventTone {
  if (event.kind === "job.status") {
    if (event.data.to === "failed" || event.data.to === "recovering") return "bad";
    return event.data.to === "succeeded" ? "good" : "plain";
  }
  if (BAD.has(event.kind)) return "bad";
  if (CHANGE.has(event.kind)) return "change";
  return GOOD.has(event.kind) ? "good" : "plain";
}

/** What another number of workers costs a job that is restarted for it; null where nobody is. */
export function restartNote(job: Job, events: readonly JobEvent[]): string | null {
  if (!job.scaling_restarts) return null;
  const newest = events.findLast((event) => event.kind === "checkpoint.committed")?.step;
  if (newest === undefined || newest === null)
    return "Scaling restarts the job from its beginning: it has reported no checkpoint yet.";
  return `Scaling restarts the job from its newest checkpoint (step ${formatCount(newest)}); later steps are computed again.`;
}

/** What stands between the wish and the workers, in a sentence; null where nothing does. */
export function scaleNote(job: Job, events: readonly JobEvent[]): string | null {
  if (job.status !== "running") return null;
  const granted = job.granted_workers;
  if (job.workers === granted) return granted === job.desired_workers ? null : sentence(job.scheduling);
  const change = `${job.workers} → ${granted}`;
  if (job.workers > granted) return `${change}, leaving…`;
  const last = events.findLast(
    (event) => event.kind === "worker.lost" || event.kind === "job.scale_requested",
  );
  if (last?.kind === "worker.lost" && granted === job.desired_workers && job.joining > 0)
    return `${job.workers} of ${granted} train; another worker is starting in place of the lost one.`;
  const missing = granted - job.workers - job.joining;
  if (missing <= 0) return `${change}, joining…`;
  const waiting = events.findLast(
    (event) => event.kind === "capacity.waiting" || event.kind === "job.scale_requested",
  );
  if (waiting?.kind !== "capacity.waiting") return `${change}, joining…`;
  const slots = missing === 1 ? "1 slot" : `${missing} slots`;
  const joining = job.joining > 0 ? `${job.joining} joining, ` : "";
  return `${change}, ${joining}waiting for ${slots}: the cluster has none free. They join when slots do.`;
}

const ENDS_CHECKPOINT = new Set(["checkpoint.deleted", "checkpoint.corrupt"]);

/** Whether a job has left a checkpoint that can be used, as far as its events tell. */
export function hasCheckpoint(events: readonly JobEvent[]): boolean {
  const left = new Set<unknown>();
  for (const { kind, data } of events) {
    if (kind === "checkpoint.committed") left.add(data.checkpoint_id);
    else if (ENDS_CHECKPOINT.has(kind)) left.delete(data.checkpoint_id);
  }
  return left.size > 0;
}
