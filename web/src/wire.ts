/** The shapes of /api/v1 that the page reads. Fields are named as on the wire. */

export type Status =
  | "queued"
  | "starting"
  | "running"
  | "recovering"
  | "pausing"
  | "paused"
  | "stopping"
  | "succeeded"
  | "failed"
  | "cancelled";

export const STATUSES: readonly Status[] = [
  "queued",
  "starting",
  "running",
  "recovering",
  "pausing",
  "paused",
  "stopping",
  "succeeded",
  "failed",
  "cancelled",
];

const FINAL: ReadonlySet<Status> = new Set(["succeeded", "failed", "cancelled"]);

/** Whether a status is written once and never left. */
export function isFinal(status: Status): boolean {
  return FINAL.has(status);
}

export interface Failure {
  failure_class: "user" | "infrastructure" | "service";
  reason: string;
  message: string;
  worker_id: string | null;
  rank: number | null;
  node: string | null;
  exit_code: number | null;
  signal: string | null;
  step: number | null;
  microbatch: number | null;
  traceback: string | null;
  last_output: string[];
}

type Printed = "traceback" | "last_output";

/** As the API shows it: with what to do about the reason, and in lists without what was printed. */
export type AdvisedFailure = Omit<Failure, Printed> & Partial<Pick<Failure, Printed>> & { advice: string };

/** Who is signed in. */
export interface Me {
  user: string;
  role: string;
  /** What they are in each of their projects: viewer, editor or admin. */
  projects: Record<string, string>;
}

export interface Job {
  id: string;
  name: string;
  project: string;
  labels: Record<string, string>;
  status: Status;
  reason: string | null;
  message: string;
  phase: string | null;
  desired_workers: number;
  granted_workers: number;
  scheduling: string;
  workers: number;
  joining: number;
  min_workers: number;
  max_workers: number;
  step: number;
  total_steps: number | null;
  metrics: Record<string, number | null>;
  attempt: number;
  generation: number;
  restarts: number;
  scalings: number;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  updated_at: string;
  result: { step: number; digest: string } | null;
  failure: AdvisedFailure | null;
  queue: { position: number | null; reason: string } | null;
  /** Of a list: some steps, rising, and the loss there. */
  loss_history?: [step: number, loss: number][];
  spec?: unknown;
  /** Of what people may change: it is changed as it was read. */
  etag?: string;
  /** Another number of workers restarts the job from its newest checkpoint. */
  scaling_restarts?: boolean;
  /** Paths of the spec that differ from the defaults. */
  spec_given?: string[];
}

export interface JobEvent {
  position: number;
  time: string;
  kind: string;
  message: string;
  step: number | null;
  generation: number | null;
  attempt: number | null;
  data: Record<string, unknown>;
}

export interface MetricRow {
  position: number;
  step: number;
  time: string;
  generation: number;
  workers: number;
  attempt: number;
  values: Record<string, number | null>;
  /** Of a row that the service thinned out: what its values count with in a mean. Not of the wire: see `rowsOfChart`. */
  means?: Record<string, Mean>;
}

/** The mean of the stretch that a value was kept of, and its weight: the values of a stretch share one. */
export type Mean = readonly [mean: number, weight: number];

/** Metrics thinned out; points of a line stand at the same index in all its columns. */
export interface MetricChart {
  bucket_steps: number;
  series: Record<string, ChartLine>;
  /** Behind this the stream of rows goes on. */
  position: number;
}

export interface ChartLine {
  x: number[];
  y: number[];
  steps: number[];
  times: number[];
  /** Of each point, the mean of all values of its stretch. */
  means: number[];
  /** Of each point in a mean over several. */
  weights: number[];
}

export interface LogLine {
  id: string;
  time: string;
  worker_id: string;
  rank: number | null;
  attempt: number;
  stream: "stdout" | "stderr" | "system";
  line: string;
}

export interface Worker {
  worker_id: string;
  incarnation: string;
  rank: number | null;
  pid: number | null;
  supervisor_pid: number | null;
  node: string;
  state: string;
  phase: string;
  step: number | null;
  node_id: string;
  /** Its share of the last step; null from controllers of an older release. */
  microbatches: number | null;
  /** Forward and backward of one of them. */
  microbatch_seconds: number | null;
  /** `cpu`, or the name of a GPU; empty: not told yet. */
  device: string;
  memory_bytes: number | null;
  /** Since its last sign of life, when that was reported. */
  silent_seconds: number | null;
}

export interface CheckpointFile {
  name: string;
  bytes: number;
  sha256: string;
}

export interface Checkpoint {
  id: string;
  checkpoint_id: string;
  attempt: number;
  step: number;
  bytes: number;
  created_at: string;
  metrics: Record<string, number | null>;
  /** Null: the storage was not asked. */
  pinned: boolean | null;
  files: CheckpointFile[];
}

export interface ClusterNode {
  node_id: string;
  hostname: string;
  address: string;
  cpu: number;
  cpu_used: number;
  gpu: number;
  gpu_used: number;
}

export interface Cluster {
  id: string;
  status: "online" | "offline";
  last_seen: string | null;
  slots_total: number;
  slots_used: number;
  nodes: ClusterNode[];
}

export interface ClusterView {
  clusters: Cluster[];
  queue: { job_id: string; name: string; position: number; reason: string }[];
}

/** What of a job runs on a node, and what that takes. */
export interface NodeJob {
  job_id: string;
  name: string;
  workers: number;
  cpu: number;
  gpu: number;
}

export interface Node {
  node_id: string;
  address: string;
  hostname: string;
  cpu: number;
  cpu_used: number;
  gpu: number;
  gpu_used: number;
  memory: number | null;
  accelerators: string[];
  state: "ready" | "cordoned" | "draining" | "drained";
  by: string | null;
  since: string | null;
  drain_within_s: number | null;
  workers_left: number;
  jobs: NodeJob[];
}

/** A job that waits for slots. */
export interface QueuedJob {
  position: number;
  job_id: string;
  name: string;
  priority: number;
  min_workers: number;
  desired_workers: number;
  because: string;
  queued_at: string;
}

/** Why a job waits, or why it has so many workers. */
export interface Explanation {
  because: string;
  position: number | null;
  priority: number;
  min_workers: number;
  max_workers: number;
  desired_workers: number;
  granted_workers: number;
  queued_at: string;
  deadline_at: string | null;
}

export interface CodeFile {
  path: string;
  bytes: number;
  is_entrypoint: boolean;
}

/** What a job runs. */
export interface Code {
  /** `none`: its code lies on the nodes, or its package is gone. */
  source: "package" | "recipe" | "none";
  name: string;
  entrypoint: string;
  items: CodeFile[];
}

export interface CodeText {
  path: string;
  bytes: number;
  /** Null: it is no text. */
  text: string | null;
  is_cut: boolean;
}

export interface Token {
  id: string;
  name: string;
  role: string;
  user: string | null;
  /** That it speaks for alone, of an agent; null: for any. */
  cluster: string | null;
  created_at: string;
  expires_at: string | null;
  revoked_at: string | null;
}

export interface User {
  name: string;
  is_admin: boolean;
  created_at: string;
  disabled_at: string | null;
  etag: string;
}

/** `role` is the caller's. */
export interface Project {
  name: string;
  description: string;
  created_at: string;
  role: "viewer" | "editor" | "admin" | null;
}

export interface ProjectDetail extends Project {
  members: { user: string; role: string }[];
  quota: { max_slots: number | null; max_queued: number | null; max_priority: number | null };
  use: { slots: number; queued: number };
}

/** A key of `config:` of a recipe. */
export interface ConfigKey {
  name: string;
  /** As the recipe annotates it, such as `int | None`. */
  type: string;
  default: number | boolean | string | null;
  doc: string;
}

export interface Recipe {
  name: string;
  description: string;
  config: ConfigKey[];
}

export interface Secret {
  name: string;
  project: string;
  created_at: string;
  updated_at: string;
  updated_by: string;
  etag: string;
}

export interface Webhook {
  id: string;
  name: string;
  project: string;
  url: string;
  events: string[];
  created_at: string;
  created_by: string;
}

/** A message to a webhook, and what became of it. */
export interface Delivery {
  id: string;
  type: string;
  job_id: string | null;
  status: "pending" | "delivered" | "failed";
  tries: number;
  created_at: string;
  next_at: string | null;
  finished_at: string | null;
  last_status: number | null;
  error: string;
}

/** RFC 9457, as every error of the service. */
export interface Problem {
  title: string;
  status: number;
  detail: string;
  code: string;
  errors: { path: string; message: string }[];
  request_id?: string;
}

/** A strategy with a number of workers, as the planner predicts it. */
export interface PlanOption {
  name: string;
  workers: number;
  step_s: number;
  compute_s: number;
  exposed_s: number;
  codec_s: number;
  update_s: number;
  samples_per_s: number;
  speedup: number;
  sent_bytes: number;
  memory_bytes: number;
  binding: string;
  is_whole: boolean;
}

/** A global batch, with the number of workers that pays for it. */
export interface PlanBatch {
  global_size: number;
  workers: number;
  samples_per_s: number;
  worth: number;
  progress: number;
  num_microbatches: number;
  memory_bytes: number;
}

export interface Plan {
  recommended: PlanOption;
  sentences: string[];
  best: PlanOption[];
  by_workers: PlanOption[];
  /** Each strategy with each number of workers; the fastest strategy first. */
  options: PlanOption[];
  refused: { name: string; reason: string }[];
  batches: PlanBatch[];
  /** Null: the noise scale was not known. */
  recommended_batch: PlanBatch | null;
}
