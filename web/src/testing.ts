/** Builders for tests: a valid object of the wire with the fields that matter to the test. */

import type { Job, JobEvent, LogLine, MetricRow } from "./wire";

/** Seconds after an arbitrary start as a time of the wire. */
export function at(seconds: number): string {
  return new Date(Date.UTC(2026, 0, 1) + seconds * 1000).toISOString();
}

export function makeJob(fields: Partial<Job> = {}): Job {
  return {
    id: "job_1",
    name: "digits",
    project: "default",
    labels: {},
    status: "running",
    reason: null,
    message: "Training.",
    phase: "training",
    desired_workers: 2,
    granted_workers: 2,
    scheduling: "has slots for the 2 workers it wants",
    workers: 2,
    joining: 0,
    min_workers: 1,
    max_workers: 8,
    step: 10,
    total_steps: 100,
    metrics: {},
    attempt: 1,
    generation: 1,
    restarts: 0,
    scalings: 0,
    created_at: at(0),
    started_at: at(1),
    finished_at: null,
    updated_at: at(2),
    result: null,
    failure: null,
    queue: null,
    ...fields,
  };
}

export function makeEvent(position: number, kind: string, fields: Partial<JobEvent> = {}): JobEvent {
  return {
    position,
    time: at(position),
    kind,
    message: "Something happened.",
    step: null,
    generation: null,
    attempt: 1,
    data: {},
    ...fields,
  };
}

export function makeRow(step: number, fields: Partial<MetricRow> = {}): MetricRow {
  return {
    position: step,
    step,
    time: at(step),
    generation: 1,
    workers: 2,
    attempt: 1,
    values: { loss: 1 / step },
    ...fields,
  };
}

export function makeLine(id: string, line = "hello", rank: number | null = 0): LogLine {
  return { id, time: at(0), worker_id: "w1", rank, attempt: 1, stream: "stdout", line };
}
