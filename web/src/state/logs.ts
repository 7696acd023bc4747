/** Log lines: pure merging by id, bounded, and filtering by rank and text. */

import type { LogLine } from "../wire";

export interface LogState {
  lines: readonly LogLine[];
  /** Lines dropped at the front, because the browser need not hold a whole log. */
  dropped: number;
}

export const NO_LOGS: LogState = { lines: [], dropped: 0 };

/** About 20 MB of browser memory at 200 characters a line. */
export const MAX_LINES = 50_000;

/** Order of two ids of the form "SEGMENT:OFFSET". */
export function compareIds(a: string, b: string): number {
  const [segmentA = 0, offsetA = 0] = a.split(":").map(Number);
  const [segmentB = 0, offsetB = 0] = b.split(":").map(Number);
  return segmentA - segmentB || offsetA - offsetB;
}

/** Append what is new. Lines come in the order of their ids, so a replayed line is at or before the last one known. */
export function appendLines(state: LogState, items: LogLine[]): LogState {
  let last = state.lines.at(-1)?.id ?? null;
  const fresh: LogLine[] = [];
  for (const item of items) {
    if (last !== null && compareIds(item.id, last) <= 0) continue;
    last = item.id;
    fresh.push(item);
  }
  if (fresh.length === 0) return state;
  const all = [...state.lines, ...fresh];
  const excess = Math.max(0, all.length - MAX_LINES);
  return { lines: excess ? all.slice(excess) : all, dropped: state.dropped + excess };
}

/** Put lines of before in front of those known. */
export function prependLines(state: LogState, items: LogLine[]): LogState {
  const first = state.lines[0];
  const earlier = first ? items.filter((item) => compareIds(item.id, first.id) < 0) : items;
  if (earlier.length === 0) return state;
  return { lines: [...earlier, ...state.lines], dropped: Math.max(0, state.dropped - earlier.length) };
}

/** The place of the first line at or after `id`; lines are in the order of their ids. */
export function placeOf(lines: readonly LogLine[], id: string): number {
  let low = 0;
  let high = lines.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const line = lines[middle];
    if (line && compareIds(line.id, id) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

export interface LogFilter {
  /** Empty: all ranks. */
  ranks: ReadonlySet<number>;
  text: string;
}

export function filterLines(lines: readonly LogLine[], filter: LogFilter): readonly LogLine[] {
  const needle = filter.text.toLowerCase();
  if (!needle && filter.ranks.size === 0) return lines;
  return lines.filter(
    (line) =>
      (filter.ranks.size === 0 || (line.rank !== null && filter.ranks.has(line.rank))) &&
      (!needle || line.line.toLowerCase().includes(needle)),
  );
}

/** The ranks that have said something, in order. */
export function ranksOf(lines: readonly LogLine[]): number[] {
  const ranks = new Set<number>();
  for (const line of lines) if (line.rank !== null) ranks.add(line.rank);
  return [...ranks].sort((a, b) => a - b);
}
