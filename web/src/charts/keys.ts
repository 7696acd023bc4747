/** How the keyboard reads a lane and zooms into it, and goes through tabs. Pure. */

import type { Range } from "./data";

/** Whether a key is pressed alone: with these it is the browser's, such as Alt and the left arrow, which goes back. */
export function isPlain(event: Pick<KeyboardEvent, "ctrlKey" | "metaKey" | "altKey">): boolean {
  return !(event.ctrlKey || event.metaKey || event.altKey);
}

/** Which of several tabs a key leads to, around both ends; null: it is no key of a list of tabs. */
export function tabAfter(key: string, index: number, count: number): number | null {
  switch (key) {
    case "ArrowLeft":
      return (index - 1 + count) % count;
    case "ArrowRight":
      return (index + 1) % count;
    case "Home":
      return 0;
    case "End":
      return count - 1;
    default:
      return null;
  }
}

/** The places of the axis that are in sight, each once. */
function placesIn(x: readonly number[], [min, max]: Range): number[] {
  return [...new Set(x)].filter((place) => place >= min && place <= max);
}

/** Where a key leads from a place, or (null) from the end: a hundredth of what is in sight further, or to an end of it. */
export function placeAfter(
  key: string,
  x: readonly number[],
  range: Range,
  place: number | null,
): number | null {
  const places = placesIn(x, range);
  const last = places.length - 1;
  const step = Math.max(1, Math.round(places.length / 100));
  const index = place === null ? last : Math.max(0, indexUpTo(places, place));
  switch (key) {
    case "ArrowLeft":
      return places[Math.max(0, index - step)] ?? null;
    case "ArrowRight":
      return places[Math.min(last, index + step)] ?? null;
    case "Home":
      return places[0] ?? null;
    case "End":
      return places[last] ?? null;
    default:
      return null;
  }
}

/** The last of the places that does not lie behind one; -1: all do. */
export function indexUpTo(places: readonly number[], place: number): number {
  return places.findLastIndex((one) => one <= place);
}

/**
 * The part of the whole that a key shows: half as much around a place, which stays where it is seen, or twice as much;
 * null: no other one.
 */
export function zoomAfter(
  key: string,
  x: readonly number[],
  range: Range,
  whole: Range,
  place: number | null,
): Range | null {
  const [min, max] = range;
  if (key === "-" || key === "_") {
    const more = (max - min) / 2;
    return [Math.max(whole[0], min - more), Math.min(whole[1], max + more)];
  }
  const around = place ?? placesIn(x, range).at(-1);
  if ((key !== "+" && key !== "=") || around === undefined) return null;
  const part: Range = [(min + around) / 2, (max + around) / 2];
  return placesIn(x, part).length < 2 ? null : part;
}
