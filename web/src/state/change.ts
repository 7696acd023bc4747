/** What people may change of a job that was submitted, as a form shows it and as a merge patch of its spec. Pure. */

import type { Job } from "../wire";

/** As typed. */
export interface Wishes {
  priority: string;
  min: string;
  max: string;
  /** `NAME=value`, one a line. */
  labels: string;
}

/** A part of a merge patch of the spec; null takes a label away. */
export interface SpecPatch {
  scheduling?: { priority: number };
  workers?: { min?: number; max?: number };
  labels?: Record<string, string | null>;
}

/** How a job stands. */
export function wishesOf(job: Job): Wishes {
  const { scheduling } = job.spec as { scheduling: { priority: number } };
  return {
    priority: String(scheduling.priority),
    min: String(job.min_workers),
    max: String(job.max_workers),
    labels: Object.entries(job.labels)
      .map(([name, value]) => `${name}=${value}`)
      .join("\n"),
  };
}

/** What of it is wished otherwise; what was not filled in stays. */
export function patchOf(job: Job, wished: Partial<Wishes>): SpecPatch {
  const known = wishesOf(job);
  const isChanged = (name: keyof Wishes) => wished[name] !== undefined && wished[name] !== known[name];
  const patch: SpecPatch = {};
  if (isChanged("priority")) patch.scheduling = { priority: Number(wished.priority) };
  if (isChanged("min")) patch.workers = { min: Number(wished.min) };
  if (isChanged("max")) patch.workers = { ...patch.workers, max: Number(wished.max) };
  // A value may hold what the form cannot show, such as a space at its end: labels that nobody touched are not read.
  const text = wished.labels?.replaceAll("\r\n", "\n");
  if (text !== undefined && text !== known.labels) {
    const labels = labelPatch(job.labels, parseLabels(text));
    if (Object.keys(labels).length > 0) patch.labels = labels;
  }
  return patch;
}

function labelPatch(
  known: Record<string, string>,
  wished: Record<string, string>,
): Record<string, string | null> {
  const gone = Object.keys(known).filter((name) => !(name in wished));
  const set = Object.entries(wished).filter(([name, value]) => known[name] !== value);
  return Object.fromEntries([...gone.map((name) => [name, null] as const), ...set]);
}

function parseLabels(text: string): Record<string, string> {
  const labels: [name: string, value: string][] = [];
  for (const line of text.split("\n").map((one) => one.trim())) {
    if (line === "") continue;
    const cut = line.indexOf("=");
    if (cut < 1) throw new Error(`“${line}” is not of the form team=vision`);
    labels.push([line.slice(0, cut).trim(), line.slice(cut + 1).trim()]);
  }
  return Object.fromEntries(labels);
}
