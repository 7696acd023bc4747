/** What the planner is asked for a spec. Pure. */

/** As it was typed in, beside the spec. */
export interface Typed {
  /** Of a worker, in Gbit/s. */
  bandwidth: string;
  /** In milliseconds. */
  latency: string;
  /** The job that measured the network; empty: none did. */
  measuredBy: string;
  /** In samples; empty: not known. */
  noise: string;
}

/** As the service takes them, and `rubato plan`. */
const LEAST_GBIT = 0.000001;
const MOST_GBIT = 8e9;
const MOST_MS = 1e9;
const MOST_NOISE = 1e15;

export const FIRST_TYPED: Typed = { bandwidth: "10", latency: "0.1", measuredBy: "", noise: "" };

export interface Inquiry extends Typed {
  /** The spec, in YAML. */
  text: string;
  /** Of the program; null: none was brought. */
  profile: unknown;
}

/** Whether the answer to one is the answer to the other; a profile is another one each time it is brought. */
export function isSameInquiry(a: Inquiry, b: Inquiry): boolean {
  return (Object.keys(a) as (keyof Inquiry)[]).every((key) => a[key] === b[key]);
}

/** What is wrong with what was typed in, by field. Two figures do not count where a job measured the network. */
export function findingsOf(typed: Typed): Partial<Record<keyof Typed, string>> {
  const found: Partial<Record<keyof Typed, string>> = {};
  if (typed.measuredBy.trim() === "") {
    if (!isWithin(typed.bandwidth, LEAST_GBIT, MOST_GBIT))
      found.bandwidth = `Give a number in Gbit/s, from ${LEAST_GBIT} to ${MOST_GBIT.toExponential()}.`;
    if (!isWithin(typed.latency, 0, MOST_MS))
      found.latency = `Give a number of milliseconds, from 0 to ${MOST_MS.toExponential()}.`;
  }
  if (typed.noise.trim() !== "" && !isWithin(typed.noise, Number.MIN_VALUE, MOST_NOISE))
    found.noise = `Give a number of samples above 0, up to ${MOST_NOISE.toExponential()}, or none.`;
  return found;
}

function isWithin(text: string, least: number, most: number): boolean {
  return text.trim() !== "" && Number(text) >= least && Number(text) <= most;
}

/** As the service takes it, with the spec as the service reads it. */
export function planRequest(inquiry: Inquiry, spec: unknown): Record<string, unknown> {
  const { profile, bandwidth, latency, noise } = inquiry;
  const job = inquiry.measuredBy.trim();
  const said = { latency_s: Number(latency) / 1e3, bytes_per_s: (Number(bandwidth) * 1e9) / 8 };
  const network = job ? { links_of: job } : { link: said };
  return { spec, profile, ...network, ...(noise.trim() ? { noise_scale: Number(noise) } : {}) };
}
