import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { placeAt, startsOf } from "../state/logrows";
import { placeOf } from "../state/logs";
import { parseAnsi } from "../text/ansi";
import { formatTime } from "../text/format";
import type { LogLine } from "../wire";
import { Icon } from "./Icon";
import { LogText } from "./LogText";

/** Height of a row; equal to --log-row in logs.css. Equal rows make 50 000 lines as cheap as 50, also where they wrap. */
const ROW_PX = 20;
/** A narrower box wraps its lines. */
const WRAPPED_PX = 640;
/** What a row of a wrapped line has beside its text and the time, as in logs.css: padding, two gaps, the rank. */
const BESIDE_PX = 20 + 16 + 34;
/** The time of day: 22:58:17. */
const CLOCK = 8;
/** Rows drawn beyond the edges, so that a quick scroll shows no hole. */
const MARGIN_ROWS = 20;

interface LogListProps {
  lines: readonly LogLine[];
  needle: string;
  now: number;
  onEarlier: (() => void) | null;
  /** Whether no line will come any more. */
  isOver: boolean;
  /** The id of a line to begin at, in the middle of the picture. */
  focus?: string | null;
}

/** Whether the last line is in sight. */
function isAtEnd(element: HTMLElement): boolean {
  return element.scrollHeight - element.scrollTop - element.clientHeight < ROW_PX * 1.5;
}

/** Draws only the rows in sight. Follows the end until the reader scrolls up. */
export function LogList({ lines, needle, now, onEarlier, isOver, focus = null }: LogListProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const probe = useRef<HTMLElement>(null);
  const [columns, setColumns] = useState(Infinity);
  const isWrapped = columns !== Infinity;
  const starts = useMemo(() => startsOf(lines, columns), [lines, columns]);
  const topOf = (id: string) => (starts[placeOf(lines, id)] ?? 0) * ROW_PX;
  const [isFollowing, setFollowing] = useState(focus === null);
  /** The line at the upper edge, and how far it has gone: what a reader looks at stays, whatever comes before it. */
  const anchor = useRef<{ id: string; beyond: number } | null>(null);

  /** Where following has put the box; null: it does not follow. */
  const placed = useRef<number | null>(null);

  useEffect(() => {
    if (!box.current) return;
    const observer = new ResizeObserver(([entry]) => {
      if (!entry) return;
      setHeight(entry.contentRect.height);
      setColumns(columnsIn(entry.contentRect.width, (probe.current?.offsetWidth ?? 0) / 10));
    });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    if (isFollowing) {
      // Lines may come between a scroll and its event: the reader's place is not to be taken from him.
      if (placed.current !== null && element.scrollTop < placed.current - 1 && !isAtEnd(element)) return;
      element.scrollTop = element.scrollHeight;
      placed.current = element.scrollTop;
      return;
    }
    placed.current = null;
    if (anchor.current) element.scrollTop = topOf(anchor.current.id) + anchor.current.beyond;
  }, [lines, isFollowing, height, columns]);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element || focus === null) return;
    setFollowing(false);
    element.scrollTop = topOf(focus) - element.clientHeight / 2;
  }, [focus, columns]);

  const onScroll = () => {
    const element = box.current;
    if (!element) return;
    setTop(element.scrollTop);
    const place = placeAt(starts, Math.floor(element.scrollTop / ROW_PX));
    const line = lines[place];
    anchor.current = line ? { id: line.id, beyond: element.scrollTop - (starts[place] ?? 0) * ROW_PX } : null;
    setFollowing(isAtEnd(element));
  };
  const first = Math.max(0, placeAt(starts, Math.floor(top / ROW_PX)) - MARGIN_ROWS);
  const last = Math.min(lines.length, placeAt(starts, Math.ceil((top + height) / ROW_PX)) + 1 + MARGIN_ROWS);
  return (
    <div class="log-frame">
      <div
        class={isWrapped ? "log-box log-wrapped" : "log-box"}
        ref={box}
        onScroll={onScroll}
        role="log"
        aria-live="off"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolled region must be reachable by keyboard
        tabIndex={0}
      >
        <span class="log-probe" ref={probe} aria-hidden="true">
          0000000000
        </span>
        {onEarlier && (
          <button type="button" class="button small log-earlier" onClick={onEarlier}>
            Load earlier lines
          </button>
        )}
        <div class="log-space" style={{ height: `${(starts.at(-1) ?? 0) * ROW_PX}px` }}>
          <div class="log-rows" style={{ transform: `translateY(${(starts[first] ?? 0) * ROW_PX}px)` }}>
            {lines.slice(first, last).map((line, index) => (
              <div
                key={line.id}
                class={`log-row log-${line.stream} ${line.id === focus ? "log-focus" : ""}`}
                style={isWrapped ? { height: `${rowsOf(starts, first + index) * ROW_PX}px` } : undefined}
              >
                <time dateTime={line.time} title={isWrapped ? formatTime(line.time, now) : undefined}>
                  {isWrapped ? formatTime(line.time, now).slice(-CLOCK) : formatTime(line.time, now)}
                </time>
                <span
                  class={line.rank === null ? "log-rank" : `log-rank rank-${line.rank % 6}`}
                  title={line.worker_id}
                >
                  {line.rank ?? line.worker_id}
                </span>
                <span class="log-text">
                  <LogText runs={parseAnsi(line.line)} needle={needle} />
                </span>
              </div>
            ))}
          </div>
        </div>
      </div>
      {!isFollowing && !isOver && (
        <button type="button" class="button small log-follow" onClick={() => setFollowing(true)}>
          <Icon name="down" /> Follow
        </button>
      )}
    </div>
  );
}

function rowsOf(starts: readonly number[], place: number): number {
  return (starts[place + 1] ?? 0) - (starts[place] ?? 0);
}

/** How many characters of a line fit beside its time and rank; a wide box scrolls instead. */
function columnsIn(width: number, letter: number): number {
  if (width >= WRAPPED_PX || width === 0 || letter === 0) return Infinity;
  return Math.max(10, Math.floor((width - BESIDE_PX) / letter) - CLOCK);
}
