/** Log lines: pure merging by id, bounded, and filtering by rank and text. */

import { plainText } from "../text/ansi";
import type { AdvisedFailure, LogLine } from "../wire";

export interface LogState {
  lines: readonly LogLine[];
  /** Lines dropped at the front, because the browser need not hold a whole log. */
  dropped: number;
  /** So many are held: more, where the reader asked for earlier ones. */
  room: number;
}

/** About 20 MB of browser memory at 200 characters a line. */
export const MAX_LINES = 50_000;
/** And so many at most, however far back the reader goes; a search looks through all of them at the service. */
export const MOST_LINES = 250_000;

export const NO_LOGS: LogState = { lines: [], dropped: 0, room: MAX_LINES };

/** Order of two ids of the form "SEGMENT:OFFSET". */
export function compareIds(a: string, b: string): number {
  const [cutA, cutB] = [a.indexOf(":"), b.indexOf(":")];
  return (
    Number(a.slice(0, cutA)) - Number(b.slice(0, cutB)) ||
    Number(a.slice(cutA + 1)) - Number(b.slice(cutB + 1))
  );
}

/** The part of a log, 0 to 1, that lies between two positions; its segments are about equally long. */
export function partSearched(from: string, end: string | undefined): number {
  const [first, last] = [from, end ?? from].map((position) => Number(position.split(":")[0]));
  return ((last ?? 0) - (first ?? 0)) / ((last ?? 0) + 1);
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
  const excess = Math.max(0, all.length - state.room);
  return { lines: excess ? all.slice(excess) : all, dropped: state.dropped + excess, room: state.room };
}

/** Put lines of before in front of those known, and make room for them, as far as there may be. */
export function prependLines(state: LogState, items: LogLine[]): LogState {
  const first = state.lines[0];
  const before = first ? items.filter((item) => compareIds(item.id, first.id) < 0) : items;
  const earlier = before.slice(Math.max(0, before.length + state.lines.length - MOST_LINES));
  if (earlier.length === 0) return state;
  const lines = [...earlier, ...state.lines];
  const room = Math.max(state.room, lines.length);
  return { lines, dropped: Math.max(0, state.dropped - earlier.length), room };
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
      (!needle || plainText(line.line).toLowerCase().includes(needle)),
  );
}

/** "0, 3, 8-10" as ranks; null where it is none of that. Spaces part as commas do. */
export function parseRanks(text: string): Set<number> | null {
  const ranks = new Set<number>();
  for (const word of text.split(/[\s,]+/).filter(Boolean)) {
    const [, first = "", last = first] = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(word) ?? [];
    if (first === "") return null;
    for (let rank = Number(first); rank <= Number(last || first) && ranks.size < 5000; rank += 1)
      ranks.add(rank);
  }
  return ranks;
}

/** The same ranks as text, as one would type them. */
export function ranksText(ranks: ReadonlySet<number>): string {
  const runs: [first: number, last: number][] = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const run = runs.at(-1);
    if (run && run[1] === rank - 1) run[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

type Failed = Pick<AdvisedFailure, "rank" | "worker_id" | "traceback">;

/** Of which ranks to look for the line of a failure: of all (none is named) where only its worker is known; null: of none. */
export function failingRanks(failure: Failed | null): ReadonlySet<number> | null {
  if (!failure || (failure.rank === null && failure.worker_id === null)) return null;
  return new Set(failure.rank === null ? [] : [failure.rank]);
}

/**
 * The line at which a job failed, as far as it is among these: the last one of the failing worker that ends as the
 * traceback does, else the last one of that worker or rank; null where none of it is here.
 */
export function findFailure(lines: readonly LogLine[], failure: Failed): LogLine | null {
  const isOwn = (line: LogLine) =>
    failure.worker_id === null ? line.rank === failure.rank : line.worker_id === failure.worker_id;
  const last = failure.traceback?.trimEnd().split("\n").at(-1)?.trim();
  const raised = last ? lines.findLast((line) => isOwn(line) && line.line.trim().endsWith(last)) : undefined;
  return raised ?? lines.findLast(isOwn) ?? null;
}

/** The ranks that have said something, in order. */
export function ranksOf(lines: readonly LogLine[]): number[] {
  const ranks = new Set<number>();
  for (const line of lines) if (line.rank !== null) ranks.add(line.rank);
  return [...ranks].sort((a, b) => a - b);
}

/** Which lines the reader wants. */
export interface LogWish extends LogFilter {
  /** RFC 3339; empty: from the beginning. */
  since: string;
}

export const NO_WISH: LogWish = { ranks: new Set(), text: "", since: "" };

/** As parameters of the service's logs, each with its `&`. */
export function queryOf({ ranks, text, since }: LogWish): string {
  const rank = [...ranks].sort((a, b) => a - b).join(",");
  const pairs = Object.entries({ rank, q: text.slice(0, 200), since }).filter(([, value]) => value);
  return pairs.map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join("");
}

/** The same for the page's address; what is recent now will not be when it is opened, so an age is not told. */
export function wishQuery(wish: LogWish): string {
  return queryOf({ ...wish, since: "" }).replace("&", "?");
}

/** The wish that an address tells, such as `?rank=0,1&q=nan`; null: it tells none. */
export function readWish(search: string): LogWish | null {
  const told = new URLSearchParams(search);
  const ranks = parseRanks(told.get("rank") ?? "") ?? NO_WISH.ranks;
  const text = told.get("q") ?? "";
  return ranks.size > 0 || text !== "" ? { ...NO_WISH, ranks, text } : null;
}
