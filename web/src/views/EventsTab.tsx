import { useState } from "preact/hooks";
import { toneOf } from "../state/events";
import { formatCount, formatTime, sentence } from "../text/format";
import type { JobEvent } from "../wire";

interface EventsTabProps {
  events: readonly JobEvent[];
  now: number;
  /** A link to all events, where only the newest are shown. */
  more?: string | null;
}

/** More rows than anyone reads; the rest is one button away. */
const PAGE = 300;

/** What happened, newest first, each a sentence. */
export function EventsTab({ events, now, more }: EventsTabProps) {
  const [limit, setLimit] = useState(PAGE);
  if (events.length === 0) return <p class="card empty soft">Nothing has happened yet.</p>;
  const newest = events.slice(-limit).reverse();
  return (
    <section class="card events" aria-label="Events">
      {more !== undefined && (
        <header class="card-head">
          <h2>Latest events</h2>
          {more && <a href={more}>All events</a>}
        </header>
      )}
      <ol>
        {newest.map((event) => (
          <li
            key={event.position}
            class={`event event-${toneOf(event)}`}
            data-kind={event.kind}
            data-position={event.position}
          >
            <time dateTime={event.time} title={event.time}>
              {formatTime(event.time, now)}
            </time>
            <span class="event-text">{sentence(event.message)}</span>
            <span class="event-where soft">
              {[
                event.step !== null && `step ${formatCount(event.step)}`,
                event.generation !== null && `generation ${event.generation}`,
              ]
                .filter(Boolean)
                .join(" · ")}
            </span>
          </li>
        ))}
      </ol>
      {events.length > limit && (
        <button type="button" class="button" onClick={() => setLimit(limit + PAGE)}>
          Show older events
        </button>
      )}
    </section>
  );
}
