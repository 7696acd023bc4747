import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { placeOf } from "../state/logs";
import { parseAnsi } from "../text/ansi";
import { formatTime } from "../text/format";
import type { LogLine } from "../wire";
import { Icon } from "./Icon";
import { LogText } from "./LogText";

/** Height of a row; equal to --log-row in logs.css. Equal rows make 50 000 lines as cheap as 50. */
const ROW_PX = 20;
/** Rows drawn beyond the edges, so that a quick scroll shows no hole. */
const MARGIN_ROWS = 20;

interface LogListProps {
  lines: readonly LogLine[];
  needle: string;
  now: number;
  onEarlier: (() => void) | null;
  /** The id of a line to begin at, in the middle of the picture. */
  focus?: string | null;
}

/** Whether the last line is in sight. */
function isAtEnd(element: HTMLElement): boolean {
  return element.scrollHeight - element.scrollTop - element.clientHeight < ROW_PX * 1.5;
}

/** Draws only the rows in sight. Follows the end until the reader scrolls up. */
export function LogList({ lines, needle, now, onEarlier, focus = null }: LogListProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [isFollowing, setFollowing] = useState(focus === null);
  /** The line at the upper edge, and how far it has gone: what a reader looks at stays, whatever comes before it. */
  const anchor = useRef<{ id: string; beyond: number } | null>(null);

  /** Where following has put the box; null: it does not follow. */
  const placed = useRef<number | null>(null);

  useEffect(() => {
    if (!box.current) return;
    const observer = new ResizeObserver(([entry]) => entry && setHeight(entry.contentRect.height));
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
    if (anchor.current)
      element.scrollTop = placeOf(lines, anchor.current.id) * ROW_PX + anchor.current.beyond;
  }, [lines, isFollowing, height]);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element || focus === null) return;
    setFollowing(false);
    element.scrollTop = placeOf(lines, focus) * ROW_PX - element.clientHeight / 2;
  }, [focus]);

  const onScroll = () => {
    const element = box.current;
    if (!element) return;
    setTop(element.scrollTop);
    const line = lines[Math.floor(element.scrollTop / ROW_PX)];
    anchor.current = line ? { id: line.id, beyond: element.scrollTop % ROW_PX } : null;
    setFollowing(isAtEnd(element));
  };
  const first = Math.max(0, Math.floor(top / ROW_PX) - MARGIN_ROWS);
  const last = Math.min(lines.length, Math.ceil((top + height) / ROW_PX) + MARGIN_ROWS);
  return (
    <div class="log-frame">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolled region must be reachable by keyboard */}
      <div class="log-box" ref={box} onScroll={onScroll} role="log" aria-live="off" tabIndex={0}>
        {onEarlier && (
          <button type="button" class="button small log-earlier" onClick={onEarlier}>
            Load earlier lines
          </button>
        )}
        <div class="log-space" style={{ height: `${lines.length * ROW_PX}px` }}>
          <div class="log-rows" style={{ transform: `translateY(${first * ROW_PX}px)` }}>
            {lines.slice(first, last).map((line) => (
              <div key={line.id} class={`log-row log-${line.stream} ${line.id === focus ? "log-focus" : ""}`}>
                <time dateTime={line.time}>{formatTime(line.time, now)}</time>
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
      {!isFollowing && (
        <button type="button" class="button small log-follow" onClick={() => setFollowing(true)}>
          <Icon name="down" /> Follow
        </button>
      )}
    </div>
  );
}
