import { useMemo, useReducer, useState } from "preact/hooks";
import { get } from "../live/api";
import { useResource, useStream } from "../live/hooks";
import type { SseMessage } from "../live/sse";
import { Icon } from "../parts/Icon";
import { LogList } from "../parts/LogList";
import { StreamBanner } from "../parts/StreamBanner";
import { useSay } from "../parts/Toasts";
import { Unread } from "../parts/Unread";
import { appendLines, filterLines, type LogState, NO_LOGS, prependLines, ranksOf } from "../state/logs";
import { formatCount, plural } from "../text/format";
import type { Job, LogLine } from "../wire";

interface LogPage {
  items: LogLine[];
  next: string | null;
}

/** How many of the newest lines are read at first. */
const FIRST_LINES = 1000;
/** And on request; the service gives no more at once. */
const MOST_LINES = 10_000;

type LogAction = { place: "end" | "front"; items: LogLine[] };

function reduceLines(state: LogState, { place, items }: LogAction): LogState {
  return place === "end" ? appendLines(state, items) : prependLines(state, items);
}

function readLines(messages: SseMessage[]): LogLine[] {
  return messages
    .filter((message) => message.event === "log")
    .flatMap((message) => (JSON.parse(message.data) as { items: LogLine[] }).items);
}

/** What the workers wrote. */
export function LogsTab({ job, now }: { job: Job; now: number }) {
  const { value, error, reload } = useResource<LogPage>(`/jobs/${job.id}/logs?tail=${FIRST_LINES}`);
  if (value) return <LiveLogs job={job} now={now} first={value} />;
  if (error) return <Unread error={error} onRetry={reload} />;
  return <div class="card loading" role="status" aria-label="Loading logs" />;
}

function LiveLogs({ job, now, first }: { job: Job; now: number; first: LogPage }) {
  const [state, add] = useReducer(reduceLines, first.items, (items) => appendLines(NO_LOGS, items));
  const [lastId] = useState(first.next ?? first.items.at(-1)?.id);
  const stream = useStream({
    path: `/jobs/${job.id}/logs`,
    lastId,
    onMessages: (messages) => add({ place: "end", items: readLines(messages) }),
  });
  const [canGrow, setCanGrow] = useState(first.items.length >= FIRST_LINES);
  const say = useSay();
  const readEarlier = async () => {
    try {
      const page = await get<LogPage>(`/jobs/${job.id}/logs?tail=${MOST_LINES}`);
      add({ place: "front", items: page.items });
      setCanGrow(false);
    } catch (error) {
      say("bad", error instanceof Error ? error.message : String(error));
    }
  };
  const [ranks, setRanks] = useState<ReadonlySet<number>>(new Set());
  const [text, setText] = useState("");
  const shown = useMemo(() => filterLines(state.lines, { ranks, text }), [state.lines, ranks, text]);
  const flip = (rank: number) => {
    const next = new Set(ranks);
    if (!next.delete(rank)) next.add(rank);
    setRanks(next);
  };
  return (
    <section class="card logs" aria-label="Logs">
      <StreamBanner states={[stream]} />
      <div class="logs-bar">
        <fieldset class="chips" aria-label="Ranks shown">
          {ranksOf(state.lines).map((rank) => (
            <button
              type="button"
              key={rank}
              class={`chip-toggle rank-${rank % 6}`}
              aria-pressed={ranks.has(rank)}
              onClick={() => flip(rank)}
            >
              rank {rank}
            </button>
          ))}
        </fieldset>
        <span class="grow" />
        <span class="soft" role="status">
          {shown.length === state.lines.length
            ? plural(shown.length, "line")
            : `${formatCount(shown.length)} of ${plural(state.lines.length, "line")}`}
        </span>
        <label class="search">
          <Icon name="search" />
          <input
            type="search"
            placeholder="Find in logs"
            aria-label="Find in logs"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
      </div>
      {state.lines.length === 0 ? (
        <p class="empty soft">No worker has written anything yet.</p>
      ) : (
        <LogList
          lines={shown}
          needle={text.toLowerCase()}
          now={now}
          onEarlier={canGrow ? () => void readEarlier() : null}
        />
      )}
    </section>
  );
}
