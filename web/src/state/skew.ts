/** How unevenly the ranks work: the time each spends on its share of a step. Pure. */

import type { Worker } from "../wire";

export interface RankTime {
  rank: number;
  workerId: string;
  /** Of its microbatches of the last step. */
  seconds: number;
}

export interface Skew {
  times: RankTime[];
  median: number;
  /** Of the longest, over the median: what the others wait. */
  excess: number;
}

/** In the order of ranks; null where there are not two to compare. */
export function skewOf(workers: readonly Worker[]): Skew | null {
  const times: RankTime[] = [];
  for (const { rank, worker_id, microbatches, microbatch_seconds } of workers) {
    if (rank === null || microbatches === null || microbatch_seconds === null) continue;
    times.push({ rank, workerId: worker_id, seconds: microbatches * microbatch_seconds });
  }
  if (times.length < 2) return null;
  times.sort((a, b) => a.rank - b.rank);
  const sorted = times.map((one) => one.seconds).sort((a, b) => a - b);
  const median = ((sorted[(sorted.length - 1) >> 1] ?? 0) + (sorted[sorted.length >> 1] ?? 0)) / 2;
  const longest = sorted.at(-1) ?? 0;
  // More workers than microbatches: most have nothing to do, and nothing to be compared by.
  return median > 0 ? { times, median, excess: longest / median - 1 } : null;
}
