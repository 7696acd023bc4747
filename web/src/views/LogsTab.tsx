import { useMemo, useReducer, useState } from "preact/hooks";
import { useResource, useStream } from "../live/hooks";
import type { SseMessage } from "../live/sse";
import { Icon } from "../parts/Icon";
import { LogList } from "../parts/LogList";
import { StreamBanner } from "../parts/StreamBanner";
import { appendLines, filterLines, NO_LOGS, ranksOf } from "../state/logs";
import { formatCount, plural } from "../text/format";
import type { Job, LogLine } from "../wire";

interface LogPage {
  items: LogLine[];
  next: string | null;
}

/** How many of the newest lines are read at first, and on request; the service gives no more at once. */
const TAILS = [1000, 10_000];

function readLines(messages: SseMessage[]): LogLine[] {
  return messages
    .filter((message) => message.event === "log")
    .flatMap((message) => (JSON.parse(message.data) as { items: LogLine[] }).items);
}

/** What the workers wrote. */
export function LogsTab({ job, now }: { job: Job; now: number }) {
  const [tail, setTail] = useState(0);
  const lines = TAILS[tail] ?? 1000;
  const first = useResource<LogPage>(`/jobs/${job.id}/logs?tail=${lines}`);
  if (first.error) return <p class="card empty error">{first.error.message}</p>;
  if (!first.value) return <div class="card loading" role="status" aria-label="Loading logs" />;
  const canGrow = tail < TAILS.length - 1 && first.value.items.length >= lines;
  return (
    <LiveLogs
      key={lines}
      job={job}
      now={now}
      first={first.value}
      onEarlier={canGrow ? () => setTail(tail + 1) : null}
    />
  );
}

interface LiveLogsProps {
  job: Job;
  now: number;
  first: LogPage;
  onEarlier: (() => void) | null;
}

function LiveLogs({ job, now, first, onEarlier }: LiveLogsProps) {
  const [state, append] = useReducer(appendLines, first.items, (items) => appendLines(NO_LOGS, items));
  const lastId = first.next ?? first.items.at(-1)?.id;
  const stream = useStream({
    path: `/jobs/${job.id}/logs`,
    lastId,
    onMessages: (messages) => append(readLines(messages)),
  });
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
        <LogList lines={shown} needle={text.toLowerCase()} now={now} onEarlier={onEarlier} />
      )}
    </section>
  );
}
