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
