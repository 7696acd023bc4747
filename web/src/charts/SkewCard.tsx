import { useResource, useThrottled } from "../live/hooks";
import { type Skew, skewOf } from "../state/skew";
import { formatDuration, formatShare } from "../text/format";
import type { Job, Worker } from "../wire";

const HEIGHT_PX = 64;
/** So much more than the median a rank is marked: from there on microbatches are moved. */
const SLOW = 1.15;

/** How long each rank works in a step: who is far above the line makes all others wait. */
export function SkewCard({ job }: { job: Job }) {
  const version = useThrottled(job.updated_at, 2000);
  const { value } = useResource<{ items: Worker[] }>(`/jobs/${job.id}/workers`, version);
  const skew = skewOf(value?.items ?? []);
  if (!skew) return null;
  const slowest = skew.times.reduce((a, b) => (b.seconds > a.seconds ? b : a));
  return (
    <section class="card skew" aria-labelledby="skew-title">
      <header class="card-head">
        <h2 id="skew-title">Skew by rank</h2>
        <span
          class="soft"
          title="The time a rank spends on its microbatches of a step; the others wait for the longest"
        >
          median {formatDuration(skew.median)}, rank {slowest.rank} is {formatShare(skew.excess)} above it
        </span>
      </header>
      <Bars skew={skew} />
    </section>
  );
}

function Bars({ skew }: { skew: Skew }) {
  const most = Math.max(...skew.times.map((one) => one.seconds), 1e-9);
  const y = (seconds: number) => HEIGHT_PX - (seconds / most) * (HEIGHT_PX - 4);
  const count = skew.times.length;
  return (
    <div class="skew-bars">
      <svg viewBox={`0 0 ${count} ${HEIGHT_PX}`} height={HEIGHT_PX} preserveAspectRatio="none" role="img">
        <title>Time of each rank in a step</title>
        {skew.times.map((one, index) => (
          <rect
            key={one.rank}
            class={one.seconds > skew.median * SLOW ? "skew-slow" : "skew-bar"}
            x={index + 0.1}
            width="0.8"
            y={y(one.seconds)}
            height={HEIGHT_PX - y(one.seconds)}
          >
            <title>
              rank {one.rank} ({one.workerId}): {formatDuration(one.seconds)}
            </title>
          </rect>
        ))}
        <line class="skew-median" x1="0" x2={count} y1={y(skew.median)} y2={y(skew.median)} />
      </svg>
      <div class="skew-ends soft" aria-hidden="true">
        <span>rank {skew.times[0]?.rank}</span>
        <span>rank {skew.times.at(-1)?.rank}</span>
      </div>
    </div>
  );
}
