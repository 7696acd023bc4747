import { describe, expect, it } from "vitest";
import type { Node, NodeJob } from "../wire";
import { describeSlots, HUES, type Hues, shareHues, slotsOf, unitOf } from "./slots";

const job = (name: string, cpu: number, gpu = 0): NodeJob => ({
  job_id: `job_${name}`,
  name,
  workers: 1,
  cpu,
  gpu,
});

function node(changes: Partial<Node> = {}): Node {
  return {
    node_id: "n",
    address: "10.0.0.1",
    hostname: "host",
    cpu: 4,
    cpu_used: 0,
    gpu: 0,
    gpu_used: 0,
    memory: null,
    accelerators: [],
    state: "ready",
    by: null,
    since: null,
    drain_within_s: null,
    workers_left: 0,
    jobs: [],
    ...changes,
  };
}

const kinds = (of: Node) => slotsOf(of).map((slot) => (slot.kind === "job" ? slot.name : slot.kind));

describe("slotsOf", () => {
  it("gives jobs their slots, then others theirs, and the rest is free", () => {
    const shown = node({ cpu_used: 3, jobs: [job("a", 1), job("b", 1)] });
    expect(kinds(shown)).toEqual(["a", "b", "other", "free"]);
    expect(describeSlots(shown)).toBe("4 CPU slots: 1 a, 1 b, 1 of others, 1 free");
  });
  it("closes the free ones of a node that takes no workers", () => {
    const shown = node({ state: "draining", cpu_used: 1, jobs: [job("a", 1)] });
    expect(kinds(shown)).toEqual(["a", "shut", "shut", "shut"]);
    expect(describeSlots(shown)).toBe("4 CPU slots: 1 a, 3 closed");
  });
  it("counts GPUs where there are some", () => {
    const shown = node({ gpu: 2, gpu_used: 1, cpu_used: 4, jobs: [job("a", 4, 1)] });
    expect(unitOf(shown)).toBe("GPU");
    expect(kinds(shown)).toEqual(["a", "free"]);
  });
  it("takes a part of a slot for a whole one, and never shows more than there are", () => {
    expect(kinds(node({ cpu: 2, cpu_used: 1.5, jobs: [job("a", 1.5)] }))).toEqual(["a", "a"]);
    expect(kinds(node({ cpu: 1, cpu_used: 1, jobs: [job("a", 2)] }))).toEqual(["a"]);
  });
});

describe("shareHues", () => {
  const share = (ids: string, before: Hues = new Map()) =>
    shareHues(before, [node({ jobs: [...ids].map((id) => job(id, 1)) })]);

  it("repeats none while one is left, whatever the order of the jobs", () => {
    expect([...share("cba")]).toEqual([
      ["job_a", 0],
      ["job_b", 1],
      ["job_c", 2],
    ]);
    const all = share("abcdefg");
    expect(new Set(all.values()).size).toBe(HUES);
    expect(share("abcdefgh", all).get("job_h")).toBe(0);
  });

  it("leaves a job its own when others come and go", () => {
    const before = share("bd");
    const after = share("abd", before);
    expect([after.get("job_b"), after.get("job_d"), after.get("job_a")]).toEqual([0, 1, 2]);
    expect(share("d", after)).toEqual(new Map([["job_d", 1]]));
  });
});
