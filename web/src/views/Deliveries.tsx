import { useEffect, useRef, useState } from "preact/hooks";
import { useResource } from "../live/hooks";
import { Unread } from "../parts/Unread";
import { jobPath } from "../router";
import { formatAgo, formatTime } from "../text/format";
import type { Delivery } from "../wire";

interface DeliveriesProps {
  /** Of the webhook. */
  path: string;
  name: string;
  now: number;
}

/** A button, and behind it what became of the newest messages to a webhook. */
export function Deliveries(props: DeliveriesProps) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" class="button small" onClick={() => setOpen(true)}>
        Deliveries
      </button>
      {isOpen && <Opened {...props} onClose={() => setOpen(false)} />}
    </>
  );
}

function Opened({ path, name, now, onClose }: DeliveriesProps & { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const { value, error, reload } = useResource<{ items: Delivery[] }>(`${path}/deliveries?limit=50`);
  return (
    <dialog ref={dialog} class="card dialog stacks" aria-label={`Deliveries of ${name}`} onClose={onClose}>
      <h2>What became of the messages to {name}</h2>
      {error && !value && <Unread error={error} onRetry={reload} />}
      {!error && !value && <p role="status">Reading them…</p>}
      {value?.items.length === 0 && <p class="soft">None was sent in the last days.</p>}
      {value && value.items.length > 0 && <List items={value.items} name={name} now={now} />}
      <p class="actions end">
        <button type="button" class="button" onClick={reload}>
          Read again
        </button>
        <button type="button" class="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </p>
    </dialog>
  );
}

function List({ items, name, now }: { items: Delivery[]; name: string; now: number }) {
  return (
    <div class="scroll-x">
      <table class="plain">
        <caption class="hidden">Newest deliveries of {name}</caption>
        <thead>
          <tr>
            <th scope="col">Made</th>
            <th scope="col">Of what</th>
            <th scope="col">Job</th>
            <th scope="col">Tries</th>
            <th scope="col">What became of it</th>
          </tr>
        </thead>
        <tbody>
          {items.map((one) => (
            <tr key={one.id} data-delivery={one.status}>
              <td title={formatTime(one.created_at, 0)} data-label="Made">
                {formatAgo(one.created_at, now)}
              </td>
              <td data-label="Of what">{one.type}</td>
              <td data-label="Job" class="row-wide">
                {one.job_id && <a href={jobPath(one.job_id)}>{one.job_id}</a>}
              </td>
              <td data-label="Tries">{one.tries}</td>
              <td data-label="What became of it" class="row-wide">
                {tellEnd(one, now)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function tellEnd({ status, last_status, error, next_at }: Delivery, now: number): string {
  if (status === "delivered") return `delivered (status ${last_status})`;
  const why = error ? `: ${error}` : "";
  if (status === "failed") return `given up${why}`;
  return `${next_at ? `next try at ${formatTime(next_at, now)}` : "on its way"}${why}`;
}
