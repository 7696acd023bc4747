/** How many rows the lines of a log take where they wrap, and which of them lie in sight. Pure. */

import { parseAnsi } from "../text/ansi";
import type { LogLine } from "../wire";

const TAB = 8;
/** From here on a character takes two places of a terminal, roughly. */
const WIDE = 0x2e80;

/** Places by line: a line does not change. */
const widths = new WeakMap<LogLine, number>();

function widthOf(line: LogLine): number {
  const known = widths.get(line);
  if (known !== undefined) return known;
  let width = 0;
  for (const { text } of parseAnsi(line.line))
    for (const one of text) width += one === "\t" ? TAB : (one.codePointAt(0) ?? 0) >= WIDE ? 2 : 1;
  widths.set(line, width);
  return width;
}

/** The row at which each line begins, and behind the last one all rows; `columns` places a row, or as many as there are. */
export function startsOf(lines: readonly LogLine[], columns: number): number[] {
  const starts = [0];
  let row = 0;
  for (const line of lines) {
    row += columns === Infinity ? 1 : Math.max(1, Math.ceil(widthOf(line) / columns));
    starts.push(row);
  }
  return starts;
}

/** The place of the line that a row belongs to. */
export function placeAt(starts: readonly number[], row: number): number {
  let low = 0;
  let high = Math.max(0, starts.length - 2);
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if ((starts[middle] ?? 0) <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}
