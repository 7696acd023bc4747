/** The jobs of a comparison: read once, and again while they train. */

import { useRef } from "preact/hooks";
import { CHART_POINTS } from "../charts/history";
import { isFinal, type Job, type JobEvent, type MetricChart } from "../wire";
import { type Resource, useNow, useResource, useThrottled } from "./hooks";

/** A job that trains is asked for anew this often. A stream for each would take the few connections that browsers allow. */
const RENEW_MS = 2000;
/** And which metrics it has, since new ones seldom come. */
const RENEW_NAMES_MS = 5000;
/** The least that the service makes a chart of: all that is wanted of it are the names. */
const FEWEST_POINTS = 10;
/** The most that one page of events holds; what a job with more did with its time is not told. */
const MOST_EVENTS = 10_000;

export interface Run {
  /** As the address names it. */
  reference: string;
  found: Resource<Job>;
  /** Of all metrics that it has; null: not read yet. */
  names: string[] | null;
  /** Null: not read, or more than can be. */
  events: readonly JobEvent[] | null;
}

/** A job and what else is told of it; null where there is no reference. */
export function useRun(reference: string | null): Run | null {
  const now = useNow(RENEW_MS);
  const over = useRef<string | null>(null);
  const found = useResource<Job>(
    reference && `/jobs/${encodeURIComponent(reference)}`,
    over.current === reference ? "over" : now,
  );
  const job = found.value;
  over.current = job && isFinal(job.status) ? reference : null;
  const path = job && `/jobs/${job.id}`;
  const seldom = useThrottled(job?.updated_at, RENEW_NAMES_MS);
  const all = useResource<MetricChart>(
    path && `${path}/metrics/chart?max_points=${FEWEST_POINTS}`,
    `${job?.status} ${seldom}`,
  );
  const told = useResource<{ items: JobEvent[] }>(
    path && `${path}/events?limit=${MOST_EVENTS}`,
    `${job?.status} ${job?.attempt} ${job?.generation}`,
  );
  if (reference === null) return null;
  const items = told.value?.items ?? null;
  return {
    reference,
    found,
    names: all.value && Object.keys(all.value.series),
    events: items && items.length < MOST_EVENTS ? items : null,
  };
}

/** Some metrics of it, thinned out to what a screen shows. */
export function useRunChart(run: Run | null, metrics: readonly string[]): Resource<MetricChart> {
  const job = run?.found.value ?? null;
  const names = metrics.map(encodeURIComponent).join(",");
  const version = useThrottled(job?.updated_at, RENEW_MS);
  return useResource<MetricChart>(
    job && names !== "" ? `/jobs/${job.id}/metrics/chart?max_points=${CHART_POINTS}&names=${names}` : null,
    version,
  );
}
