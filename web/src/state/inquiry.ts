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

/** As the service takes it, with the spec as the service reads it. */
export function planRequest(inquiry: Inquiry, spec: unknown): Record<string, unknown> {
  const { profile, bandwidth, latency, noise } = inquiry;
  const job = inquiry.measuredBy.trim();
  const said = { latency_s: Number(latency) / 1e3, bytes_per_s: (Number(bandwidth) * 1e9) / 8 };
  const network = job ? { links_of: job } : { link: said };
  return { spec, profile, ...network, ...(noise.trim() ? { noise_scale: Number(noise) } : {}) };
}
