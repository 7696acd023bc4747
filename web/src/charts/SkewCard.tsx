import { useResource, useThrottled } from "../live/hooks";
import { type RankTime, skewOf } from "../state/skew";
import { formatDuration } from "../text/format";
import type { Job, Worker } from "../wire";

/** How long each rank computes in a step: who has the longest bar makes all others wait. */
export function SkewCard({ job }: { job: Job }) {
  const version = useThrottled(job.updated_at, 2000);
  const { value } = useResource<{ items: Worker[] }>(`/jobs/${job.id}/workers`, version);
  const times = skewOf(value?.items ?? []);
  if (!times) return null;
  const most = Math.max(...times.map((one) => one.seconds));
  return (
    <section class="card skew" aria-labelledby="skew-title">
      <header class="card-head">
        <h2 id="skew-title">Compute a step, by rank</h2>
        <span class="soft">{tellSlow(times)}</span>
      </header>
      <ol
        class="skew-ranks"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolled region must be reachable by keyboard
        tabIndex={0}
        aria-labelledby="skew-title"
      >
        {times.map((one) => (
          <li key={one.rank} data-worker={one.workerId} data-slow={one.ratio !== null}>
            <span>
              {one.workerId} <span class="soft">rank {one.rank}</span>
            </span>
            <span class="skew-bar" aria-hidden="true">
              <i style={{ width: `${(one.seconds / most) * 100}%` }} />
            </span>
            <span>
              {formatDuration(one.seconds)}{" "}
              <span class="soft">
                {one.microbatches} × {formatDuration(one.each)}
              </span>
              {one.ratio !== null && <span class="slow"> {one.ratio.toFixed(1)}× the others</span>}
            </span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function tellSlow(times: readonly RankTime[]): string {
  const slow = times.filter((one) => one.ratio !== null).map((one) => one.workerId);
  if (slow.length === 0) return "A microbatch takes about the same time with each of them";
  const names = slow.length > 3 ? `${slow.length} workers` : slow.join(", ");
  return `Slow for a microbatch: ${names}`;
}
