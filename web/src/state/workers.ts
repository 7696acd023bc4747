import type { Worker } from "../wire";

/** From so much on a worker is called slow: that much a move of microbatches must gain, too. */
const SLOW = 1.15;

/** How many times as long as the median of the others a worker takes for a microbatch; null: not much longer. */
export function slowness(worker: Worker, workers: readonly Worker[]): number | null {
  const others = workers
    .filter((one) => one.worker_id !== worker.worker_id)
    .map((one) => one.microbatch_seconds)
    .filter((value) => value !== null)
    .sort((a, b) => a - b);
  const low = others[Math.floor((others.length - 1) / 2)];
  const high = others[Math.floor(others.length / 2)];
  if (worker.microbatch_seconds === null || low === undefined || high === undefined) return null;
  const ratio = worker.microbatch_seconds / ((low + high) / 2);
  return ratio >= SLOW ? ratio : null;
}

/** How many train: only these have a rank. */
export function trainedBy(workers: readonly Worker[]): number {
  return workers.filter((one) => one.rank !== null).length;
}

/** What the job loses with a worker that is killed, where so many train. */
export function lossOf(worker: Worker, trained: number): string {
  if (worker.rank === null)
    return "It does not train yet, so no step is lost, and another worker is started.";
  if (trained > 1) return "The others finish its share of the step, and another worker is started.";
  return "No other worker trains: the job goes back to its newest checkpoint, or to its beginning without one, and trains the steps since then again.";
}
