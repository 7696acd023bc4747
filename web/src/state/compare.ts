/** Which jobs are compared, in what, and where they differ. Pure. */

import type { XAxis } from "../charts/data";
import type { Job, MetricChart } from "../wire";

/** More lines than this nobody tells apart. */
export const MOST_COMPARED = 4;

export interface Comparison {
  /** Ids or names, in the order of their columns; none twice. */
  jobs: readonly string[];
  /** Empty: the reader has not chosen, so the loss is shown. */
  metrics: readonly string[];
  axis: XAxis;
  isSmooth: boolean;
  isLog: boolean;
}

export const NOTHING_COMPARED: Comparison = {
  jobs: [],
  metrics: [],
  axis: "step",
  isSmooth: true,
  isLog: false,
};

/** What an address tells, such as `?jobs=a,b&metric=loss&x=time`; what makes no sense is left out. */
export function readComparison(search: string): Comparison {
  const told = new URLSearchParams(search);
  const jobs = told.getAll("jobs").flatMap((part) => part.split(",").map((job) => job.trim()));
  return {
    jobs: [...new Set(jobs.filter(Boolean))].slice(0, MOST_COMPARED),
    metrics: [...new Set(told.getAll("metric").filter(Boolean))],
    axis: (["time", "samples"] as const).find((axis) => axis === told.get("x")) ?? "step",
    isSmooth: told.get("smooth") !== "0",
    isLog: told.get("log") === "1",
  };
}

/** The same as an address; what is as usual is not told. */
export function comparePath(wanted: Partial<Comparison>): string {
  const { jobs, metrics, axis, isSmooth, isLog } = { ...NOTHING_COMPARED, ...wanted };
  const told = new URLSearchParams();
  for (const metric of metrics) told.append("metric", metric);
  if (axis !== "step") told.set("x", axis);
  if (!isSmooth) told.set("smooth", "0");
  if (isLog) told.set("log", "1");
  const parts = [jobs.length > 0 && `jobs=${jobs.map(encodeURIComponent).join(",")}`, told.toString()];
  const query = parts.filter(Boolean).join("&");
  return query === "" ? "/compare" : `/compare?${query}`;
}

/** The chosen ones, also those that no job has, so that it can be said; else the loss, else whatever there is. */
export function metricsShown(chosen: readonly string[], names: readonly string[]): string[] {
  if (chosen.length > 0) return [...chosen];
  return names.slice(0, 1);
}

export interface Reading {
  newest: number | null;
  least: number | null;
  greatest: number | null;
}

/** What a job has measured of a metric. A chart keeps the extremes; its end may lack a few steps, or be older. */
export function readingOf(job: Job, chart: MetricChart | null, name: string): Reading {
  const values = chart?.series[name]?.y ?? [];
  const told = job.metrics[name];
  const newest = told === undefined ? (values.at(-1) ?? null) : told;
  if (values.length === 0) return { newest, least: null, greatest: null };
  const finite = [...values, ...(typeof newest === "number" ? [newest] : [])];
  const least = finite.reduce((a, b) => Math.min(a, b));
  return { newest, least, greatest: finite.reduce((a, b) => Math.max(a, b)) };
}

/** Whether jobs came to the same weights; empty: fewer than two are known. */
export function digestNote(digests: readonly (string | null)[]): string {
  const known = digests.filter((digest) => digest !== null);
  if (known.length < 2) return "";
  const kinds = new Set(known).size;
  if (kinds === 1) return "equal: the same weights, bit for bit";
  return kinds === known.length ? "not equal" : "not all equal";
}

/** Places of the spec where jobs differ, with what each says there; undefined: nothing. */
export interface Difference {
  path: string;
  values: unknown[];
}

/** All places of the specs that are not the same in all, in the order of the first. Each job has a name of its own. */
export function specDifferences(specs: readonly unknown[]): Difference[] {
  const flat = specs.map((spec) => new Map(leavesOf(spec, "")));
  const paths = new Set(flat.flatMap((leaves) => [...leaves.keys()]));
  paths.delete("name");
  return [...paths]
    .map((path) => ({ path, values: flat.map((leaves) => leaves.get(path)) }))
    .filter(({ values }) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}

function leavesOf(part: unknown, path: string): [path: string, value: unknown][] {
  if (typeof part !== "object" || part === null || Array.isArray(part)) return path ? [[path, part]] : [];
  return Object.entries(part).flatMap(([name, value]) => leavesOf(value, path ? `${path}.${name}` : name));
}
