import { expect, test } from "vitest";
import type { Worker } from "../wire";
import { lossOf, slowness, trainedBy } from "./workers";

function worker(id: string, seconds: number | null): Worker {
  return { worker_id: id, microbatch_seconds: seconds } as Worker;
}

test("a worker that takes much longer than the median of the others is slow", () => {
  const workers = [worker("w1", 0.01), worker("w2", 0.03), worker("w3", 0.012)];
  expect(workers.map((one) => slowness(one, workers))).toEqual([null, expect.closeTo(0.03 / 0.011), null]);
});

test("alone, unknown, and about as fast as the others: not slow", () => {
  const alone = [worker("w1", 5)];
  expect(slowness(alone[0] as Worker, alone)).toBeNull();
  const unknown = [worker("w1", 0.01), worker("w2", null), worker("w3", null)];
  expect(unknown.map((one) => slowness(one, unknown))).toEqual([null, null, null]);
  const even = [worker("w1", 0.0108), worker("w2", 0.01)];
  expect(slowness(even[0] as Worker, even)).toBeNull();
});

test("a kill costs what the number of workers that train says", () => {
  const first = { worker_id: "w1", rank: 0 } as Worker;
  const second = { worker_id: "w2", rank: 1 } as Worker;
  const warm = { worker_id: "w3", rank: null } as Worker;
  expect(lossOf(first, trainedBy([first, second, warm]))).toMatch(/^The others finish/);
  expect(lossOf(first, trainedBy([first, warm]))).toMatch(/^No other worker trains: .* checkpoint/);
  expect(lossOf(warm, trainedBy([first, warm]))).toMatch(/no step is lost/);
});
