/** The slots of a node, one after another: whose they are, and which are free. Pure. */

import type { Node } from "../wire";

/** Hues that jobs share out; none of them is red, which means that something is wrong. */
export const HUES = 7;

/** By the id of a job. */
export type Hues = ReadonlyMap<string, number>;

export type Slot =
  | { kind: "job"; jobId: string; name: string }
  /** Of jobs in projects that the reader has no role in, or of something that is no job. */
  | { kind: "other" }
  | { kind: "free" }
  /** Free, but the node takes no new workers. */
  | { kind: "shut" };

/** GPUs where the node has some, else CPUs. */
export function unitOf(node: Node): "GPU" | "CPU" {
  return node.gpu > 0 ? "GPU" : "CPU";
}

/** Jobs first, in the order of their ids; a slot of which a part is taken counts as taken. */
export function slotsOf(node: Node): Slot[] {
  const unit = unitOf(node) === "GPU" ? "gpu" : "cpu";
  const total = Math.floor(node[unit]);
  const slots: Slot[] = [];
  let taken = 0;
  for (const job of node.jobs) {
    taken += job[unit];
    const slot: Slot = { kind: "job", jobId: job.job_id, name: job.name };
    for (let n = Math.ceil(job[unit]); n > 0; n--) slots.push(slot);
  }
  for (let n = Math.ceil(node[`${unit}_used`] - taken); n > 0; n--) slots.push({ kind: "other" });
  const isShut = node.state !== "ready";
  while (slots.length < total) slots.push({ kind: isShut ? "shut" : "free" });
  return slots.slice(0, total);
}

/**
 * The hues of the jobs on these nodes, in the order of their ids: each keeps the one that it had, and a new one gets the
 * first of those that the fewest have.
 */
export function shareHues(before: Hues, nodes: readonly Node[]): Hues {
  const ids = [...new Set(nodes.flatMap((node) => node.jobs.map((job) => job.job_id)))].sort();
  const hues = new Map<string, number>();
  const jobs = new Array<number>(HUES).fill(0);
  const give = (id: string, hue: number) => {
    hues.set(id, hue);
    jobs[hue] = (jobs[hue] ?? 0) + 1;
  };
  for (const id of ids) {
    const kept = before.get(id);
    if (kept !== undefined) give(id, kept);
  }
  for (const id of ids) if (!hues.has(id)) give(id, jobs.indexOf(Math.min(...jobs)));
  return hues;
}

/** A line for those who do not see squares. */
export function describeSlots(node: Node): string {
  const slots = slotsOf(node);
  const parts = node.jobs.map((job) => `${count(slots, job.job_id)} ${job.name}`);
  const rest = (kind: Slot["kind"], word: string) => {
    const found = slots.filter((slot) => slot.kind === kind).length;
    if (found > 0) parts.push(`${found} ${word}`);
  };
  rest("other", "of others");
  rest("free", "free");
  rest("shut", "closed");
  return `${slots.length} ${unitOf(node)} slots: ${parts.join(", ") || "none"}`;
}

function count(slots: readonly Slot[], jobId: string): number {
  return slots.filter((slot) => slot.kind === "job" && slot.jobId === jobId).length;
}
