import { useEffect, useMemo, useReducer, useState } from "preact/hooks";
import { API, get } from "../live/api";
import { useResource, useStream, useThrottled } from "../live/hooks";
import type { SseMessage } from "../live/sse";
import { LogList } from "../parts/LogList";
import { StreamBanner } from "../parts/StreamBanner";
import { useSay } from "../parts/Toasts";
import { Unread } from "../parts/Unread";
import {
  appendLines,
  failingRanks,
  filterLines,
  findFailure,
  type LogState,
  type LogWish,
  MOST_LINES,
  NO_LOGS,
  NO_WISH,
  partSearched,
  prependLines,
  queryOf,
  ranksOf,
  readWish,
  wishQuery,
} from "../state/logs";
import { formatCount, plural } from "../text/format";
import { isFinal, type Job, type LogLine } from "../wire";
import { LogsBar } from "./LogsBar";

interface LogPage {
  items: LogLine[];
  next: string | null;
  /** Where to go on backwards; null: nothing lies before. */
  earlier: string | null;
}

/** How many of the newest lines are read at first. */
const FIRST_LINES = 1000;
/** And on request; the service gives no more at once. */
const MORE_LINES = 10_000;

type LogAction = { place: "end" | "front"; items: LogLine[] };

function reduceLines(state: LogState, { place, items }: LogAction): LogState {
  return place === "end" ? appendLines(state, items) : prependLines(state, items);
}

function readLines(messages: SseMessage[]): LogLine[] {
  return messages
    .filter((message) => message.event === "log")
    .flatMap((message) => (JSON.parse(message.data) as { items: LogLine[] }).items);
}

/** What the workers wrote. Of a job that failed it opens at the failing rank's last lines. */
export function LogsTab({ job, now }: { job: Job; now: number }) {
  const failing = failingRanks(job.failure);
  const [wish, setWish] = useWish(failing);
  const [ranks, setRanks] = useState<readonly number[]>([...(failing ?? [])]);
  const [counted, setCounted] = useState("");
  const [jumps, setJumps] = useState(0);
  // The service looks through all that was ever written; what is here is filtered at once.
  const query = useThrottled(queryOf(wish), 400);
  const path = `/jobs/${job.id}/logs`;
  const { value, error, reload } = useResource<LogPage>(`${path}?tail=${FIRST_LINES}${query}`);
  const jump = (among: ReadonlySet<number>) => {
    setWish({ ...NO_WISH, ranks: among });
    setJumps(jumps + 1);
  };
  const addRanks = (found: readonly number[]) =>
    setRanks((known) =>
      found.every((rank) => known.includes(rank))
        ? known
        : [...new Set([...known, ...found])].sort((a, b) => a - b),
    );
  return (
    <section class="card logs" aria-label="Logs">
      <LogsBar
        wish={wish}
        ranks={ranks}
        counted={counted}
        file={{ href: `${API}${path}/file?${query.slice(1)}`, name: `${job.name}.log` }}
        onWish={setWish}
        onFailure={failing && (() => jump(failing))}
      />
      {value ? (
        <LiveLogs
          key={query + jumps}
          job={job}
          now={now}
          first={value}
          query={query}
          wish={wish}
          onRanks={addRanks}
          onCount={setCounted}
          onAll={() => setWish(NO_WISH)}
        />
      ) : error ? (
        <Unread error={error} onRetry={reload} />
      ) : (
        <div class="log-box" role="status" aria-label="Loading logs" />
      )}
    </section>
  );
}

/** It stands in the address, as the filter of the jobs does; without one, what matters of a failure is shown. */
function useWish(failing: ReadonlySet<number> | null): [LogWish, (wish: LogWish) => void] {
  const read = () => readWish(location.search) ?? (failing ? { ...NO_WISH, ranks: failing } : NO_WISH);
  const [wish, setWish] = useState(read);
  useEffect(() => {
    const reread = () => setWish(read());
    window.addEventListener("popstate", reread);
    return () => window.removeEventListener("popstate", reread);
  }, []);
  const change = (wanted: LogWish) => {
    history.replaceState(null, "", location.pathname + wishQuery(wanted) + location.hash);
    setWish(wanted);
  };
  return [wish, change];
}

interface LiveLogsProps {
  job: Job;
  now: number;
  first: LogPage;
  query: string;
  wish: LogWish;
  onRanks: (ranks: readonly number[]) => void;
  onCount: (text: string) => void;
  onAll: () => void;
}

function LiveLogs({ job, now, first, query, wish, onRanks, onCount, onAll }: LiveLogsProps) {
  const [state, add] = useReducer(reduceLines, first.items, (items) => appendLines(NO_LOGS, items));
  const [lastId] = useState(first.next ?? first.items.at(-1)?.id);
  const stream = useStream({
    path: `/jobs/${job.id}/logs${query.replace("&", "?")}`,
    lastId,
    onMessages: (messages) => add({ place: "end", items: readLines(messages) }),
  });
  const { earlier, isReading, hasFailed, readEarlier } = useEarlier(job, first.earlier, query, state, add);
  // A search ends where something is found, and else at the beginning of the log, of which each look sees a part.
  const isSearching = state.lines.length === 0 && earlier !== null && !hasFailed;
  useEffect(() => {
    if (isSearching && !isReading) void readEarlier();
  }, [isSearching, isReading]);
  const onEarlier = earlier !== null && !isReading ? () => void readEarlier() : null;
  const shown = useMemo(() => filterLines(state.lines, wish), [state.lines, wish]);
  const [focus] = useState(() => (job.failure ? (findFailure(state.lines, job.failure)?.id ?? null) : null));
  useEffect(() => onRanks(ranksOf(state.lines)), [state.lines]);
  useEffect(() => {
    const part = `${formatCount(shown.length)} of ${plural(state.lines.length, "line")}`;
    onCount(shown.length === state.lines.length ? plural(shown.length, "line") : part);
  }, [shown.length, state.lines.length]);
  return (
    <>
      <StreamBanner states={[stream]} />
      {state.lines.length === 0 ? (
        <NoLines
          isAll={query === ""}
          searched={isSearching ? partSearched(earlier, lastId) : null}
          onEarlier={onEarlier}
          onAll={onAll}
        />
      ) : (
        <LogList
          lines={shown}
          needle={wish.text.toLowerCase()}
          now={now}
          focus={focus}
          onEarlier={onEarlier}
          isOver={isFinal(job.status)}
        />
      )}
    </>
  );
}

/** Reads page before page, until the log's beginning or the browser's measure. */
function useEarlier(
  job: Job,
  from: string | null,
  query: string,
  state: LogState,
  add: (action: LogAction) => void,
) {
  const [next, setNext] = useState(from);
  const [isReading, setReading] = useState(false);
  const [hasFailed, setFailed] = useState(false);
  const say = useSay();
  // Where lines were dropped at the front, those come first.
  const earlier = state.dropped > 0 ? (state.lines[0]?.id ?? null) : next;
  const readEarlier = async () => {
    setReading(true);
    setFailed(false);
    try {
      const page = await get<LogPage>(`/jobs/${job.id}/logs?before=${earlier}&tail=${MORE_LINES}${query}`);
      add({ place: "front", items: page.items });
      setNext(page.earlier);
    } catch (error) {
      say("bad", error instanceof Error ? error.message : String(error));
      setFailed(true);
    }
    setReading(false);
  };
  return { earlier: state.lines.length < MOST_LINES ? earlier : null, isReading, hasFailed, readEarlier };
}

interface NoLinesProps {
  isAll: boolean;
  /** The part of the log that was looked through, while the rest of it is; null: no more is. */
  searched: number | null;
  onEarlier: (() => void) | null;
  onAll: () => void;
}

function NoLines({ isAll, searched, onEarlier, onAll }: NoLinesProps) {
  if (isAll && !onEarlier && searched === null)
    return <p class="empty soft">No worker has written anything yet.</p>;
  return (
    <div class="empty">
      {searched !== null ? (
        <p class="soft" role="status">
          No line matches in the newest {Math.round(searched * 100)} % of the log. Looking further back…
        </p>
      ) : (
        <p class="soft">{onEarlier ? "No line matches as far as it was looked." : "No line matches."}</p>
      )}
      <p class="actions">
        {searched === null && onEarlier && (
          <button type="button" class="button" onClick={onEarlier}>
            Load earlier lines
          </button>
        )}
        {!isAll && (
          <button type="button" class="button" onClick={onAll}>
            Show all lines
          </button>
        )}
      </p>
    </div>
  );
}
