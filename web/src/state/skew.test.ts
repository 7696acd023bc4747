import { describe, expect, it } from "vitest";
import type { Worker } from "../wire";
import { skewOf } from "./skew";

const worker = (
  rank: number | null,
  microbatches: number | null,
  microbatch_seconds: number | null,
): Worker => ({
  worker_id: `w${rank}`,
  incarnation: "1",
  rank,
  pid: 1,
  supervisor_pid: 1,
  node: "a",
  state: "active",
  phase: "compute",
  step: 1,
  node_id: "n",
  microbatches,
  microbatch_seconds,
  device: "cpu",
  memory_bytes: null,
  silent_seconds: null,
});

describe("skewOf", () => {
  it("compares what ranks spend on their whole share, in the order of ranks", () => {
    const skew = skewOf([worker(2, 4, 0.02), worker(0, 8, 0.01), worker(1, 8, 0.015), worker(null, 8, 9)]);
    expect(skew?.times.map((one) => [one.rank, one.seconds])).toEqual([
      [0, 0.08],
      [1, 0.12],
      [2, 0.08],
    ]);
    expect(skew?.median).toBeCloseTo(0.08);
    expect(skew?.excess).toBeCloseTo(0.5);
  });

  it("says nothing of one, nor of what was not measured", () => {
    expect(skewOf([worker(0, 8, 0.01), worker(1, null, null)])).toBeNull();
  });
});
