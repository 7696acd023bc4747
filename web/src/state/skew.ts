/** How unevenly the ranks work: the time each spends on its share of a step. Pure. */

import type { Worker } from "../wire";
import { slowness } from "./workers";

export interface RankTime {
  rank: number;
  workerId: string;
  /** Its share of the last step. */
  microbatches: number;
  /** Of one of them. */
  each: number;
  /** Of all of them. */
  seconds: number;
  /** How many times as long as the others it takes for one; null: not much longer. */
  ratio: number | null;
}

/** In the order of ranks; null where there are not two to compare. */
export function skewOf(workers: readonly Worker[]): RankTime[] | null {
  const times: RankTime[] = [];
  for (const worker of workers) {
    const { rank, worker_id: workerId, microbatches, microbatch_seconds: each } = worker;
    if (rank === null || microbatches === null || each === null) continue;
    const ratio = slowness(worker, workers);
    times.push({ rank, workerId, microbatches, each, seconds: microbatches * each, ratio });
  }
  if (times.filter((one) => one.seconds > 0).length < 2) return null;
  return times.sort((a, b) => a.rank - b.rank);
}
