/** From times to pixels: what the timeline draws, and what lies under the pointer. Pure. */

import type { LaneSpan, WorkerLane } from "../state/lanes";
import type { Span } from "../state/story";

export interface Strip {
  /** Milliseconds since 1970 at the left and the right edge. */
  from: number;
  to: number;
  /** Pixels between the edges. */
  width: number;
}

/** What is shorter would not be seen: a pause of 40 ms in a day. */
const LEAST_PX = 1.5;

export function pxOf(strip: Strip, at: number): number {
  return ((at - strip.from) / Math.max(1, strip.to - strip.from)) * strip.width;
}

export function timeAt(strip: Strip, px: number): number {
  return strip.from + (px / Math.max(1, strip.width)) * (strip.to - strip.from);
}

/** Height of a worker's lane: generous for a few, thin for hundreds. */
export function laneHeight(count: number): number {
  if (count <= 16) return 15;
  return count <= 64 ? 9 : 5;
}

interface Boxed {
  from: number;
  to: number;
}

/** One path for all spans of a kind: thousands of them cost one element. */
export function boxes(strip: Strip, spans: readonly Boxed[], top: number, height: number): string {
  let path = "";
  let drawnTo = Number.NEGATIVE_INFINITY;
  for (const span of spans) {
    const left = Math.max(0, pxOf(strip, span.from));
    const width = Math.max(LEAST_PX, pxOf(strip, span.to) - left);
    // Boxes that fall on the same pixel are drawn once.
    if (left + width <= drawnTo + 0.25) continue;
    drawnTo = left + width;
    path += `M${round(left)} ${top}h${round(width)}v${height}h${round(-width)}z`;
  }
  return path;
}

/** The boxes of all lanes in one state. */
export function laneBoxes(strip: Strip, lanes: readonly WorkerLane[], state: LaneSpan["state"]): string {
  const height = laneHeight(lanes.length);
  return lanes
    .map((lane, row) => {
      const spans = lane.spans.filter((span) => span.state === state && span.to > span.from);
      return boxes(strip, spans, row * height + 1, height - 2);
    })
    .join("");
}

function round(px: number): number {
  return Math.round(px * 100) / 100;
}

/** The span at a moment, the last one behind the end; null before the first. */
export function spanAt<T extends Boxed>(spans: readonly T[], at: number): T | null {
  return spans.findLast((span) => span.from <= at) ?? null;
}

/** A box of no width under the pointer is hard to hit: so near counts as on it. */
const NEAR_PX = 5;

/** The moments so near to a place that they are meant, the nearest first. */
export function momentsNear<T extends { at: number }>(strip: Strip, moments: readonly T[], px: number): T[] {
  const distance = (moment: T) => Math.abs(pxOf(strip, moment.at) - px);
  return moments.filter((moment) => distance(moment) <= NEAR_PX).sort((a, b) => distance(a) - distance(b));
}

const STEPS_S = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000];

/** Seconds since the beginning that get a label, of those between the edges: round ones, about 90 pixels apart. */
export function ticksOf(strip: Strip, beginning: number): number[] {
  const [from, to] = [(strip.from - beginning) / 1000, (strip.to - beginning) / 1000];
  const most = Math.max(1, Math.floor(strip.width / 90));
  const step = STEPS_S.find((one) => (to - from) / one <= most) ?? to - from;
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, index) => (first + index) * step);
}

/** Which part of the whole story is shown. */
export function zoomed(spans: readonly Span[], lastSeconds: number | null): [from: number, to: number] {
  const from = spans[0]?.from ?? 0;
  const to = spans.at(-1)?.to ?? from + 1;
  return [lastSeconds === null ? from : Math.max(from, to - lastSeconds * 1000), to];
}
