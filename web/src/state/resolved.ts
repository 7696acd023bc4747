/** What a spec comes to, once all defaults are in it. Pure. */

import { plural } from "../text/format";

interface Resolved {
  backend: "rubato" | "ray_train";
  workers: { initial: number; min: number; max: number };
  batch: { global_size: number; num_microbatches: number };
}

/** In one sentence: "Holds: 2 workers (1 to 8), 256 samples a step in 8 microbatches." */
export function resolvedSentence(spec: unknown): string {
  const { backend, workers, batch } = spec as Resolved;
  const bounds = workers.min < workers.max ? ` (${workers.min} to ${workers.max})` : "";
  const samples = `${plural(batch.global_size, "sample")} a step in ${batch.num_microbatches} microbatches`;
  const what = backend === "ray_train" ? "a function of Ray Train" : samples;
  return `The spec is valid: ${plural(workers.initial, "worker")}${bounds}, ${what}.`;
}
