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
  it("tells what ranks spend on their whole share, in the order of ranks", () => {
    const skew = skewOf([worker(2, 4, 0.02), worker(0, 8, 0.01), worker(1, 8, 0.015), worker(null, 8, 9)]);
    expect(skew?.map((one) => [one.rank, one.seconds])).toEqual([
      [0, 0.08],
      [1, 0.12],
      [2, 0.08],
    ]);
  });

  it("calls slow who takes long for a microbatch, and not who was given more of them", () => {
    const skew = skewOf([worker(0, 3, 0.014), worker(1, 5, 0.01), worker(2, 4, 0.01)]);
    expect(skew?.map((one) => one.ratio?.toFixed(1))).toEqual(["1.4", undefined, undefined]);
  });

  it("says nothing of one, nor of what was not measured", () => {
    expect(skewOf([worker(0, 8, 0.01), worker(1, null, null)])).toBeNull();
    expect(skewOf([worker(0, 1, 0.01), worker(1, 0, 0.01)])).toBeNull();
  });
});
