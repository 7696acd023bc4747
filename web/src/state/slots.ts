/** The slots of a node, one after another: whose they are, and which are free. */

import type { Node } from "../wire";

/** Hues that jobs share out; none of them is red, which means that something is wrong. */
export const HUES = 7;

export type Slot =
  | { kind: "job"; jobId: string; name: string; hue: number }
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
    const slot: Slot = { kind: "job", jobId: job.job_id, name: job.name, hue: hueOf(job.job_id) };
    for (let n = Math.ceil(job[unit]); n > 0; n--) slots.push(slot);
  }
  for (let n = Math.ceil(node[`${unit}_used`] - taken); n > 0; n--) slots.push({ kind: "other" });
  const isShut = node.state !== "ready";
  while (slots.length < total) slots.push({ kind: isShut ? "shut" : "free" });
  return slots.slice(0, total);
}

/** The hue of each job that was given one, by the cluster that runs it. */
const given = new Map<string, ReadonlyMap<string, number>>();

/**
 * Give the jobs of a cluster their hues, in the order of their ids: each keeps the one that it has for as long as it is
 * there, and a new one gets the first of those that the fewest jobs have.
 */
export function shareHues(clusterId: string, nodes: readonly Node[]): void {
  const before = given.get(clusterId);
  const ids = [...new Set(nodes.flatMap((node) => node.jobs.map((job) => job.job_id)))].sort();
  const hues = new Map<string, number>();
  for (const id of ids) {
    const kept = before?.get(id);
    if (kept !== undefined) hues.set(id, kept);
  }
  given.set(clusterId, hues);
  for (const id of ids) if (!hues.has(id)) hues.set(id, rarestHue());
}

function rarestHue(): number {
  const jobs = new Array<number>(HUES).fill(0);
  for (const hues of given.values()) for (const hue of hues.values()) jobs[hue] = (jobs[hue] ?? 0) + 1;
  return jobs.indexOf(Math.min(...jobs));
}

/** What `shareHues` gave the job. */
export function hueOf(jobId: string): number {
  for (const hues of given.values()) {
    const hue = hues.get(jobId);
    if (hue !== undefined) return hue;
  }
  return 0;
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
