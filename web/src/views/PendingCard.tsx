import { useResource } from "../live/hooks";
import { Icon } from "../parts/Icon";
import { Prose } from "../parts/Prose";
import { useMayChange } from "../parts/useMe";
import { formatCoarse, formatTime, plural, sentence } from "../text/format";
import type { Explanation, Job } from "../wire";
import { CHANGE_BUTTON } from "./ChangeJob";

/** Asked for anew this often: others come and go in the queue. */
const RENEW_MS = 5000;

interface PendingCardProps {
  job: Job;
  now: number;
}

/** Why a queued job waits: the scheduler's sentence, its place, and what it needs to start. */
export function PendingCard({ job, now }: PendingCardProps) {
  const mayChange = useMayChange(job.project);
  const version = `${Math.floor(now / RENEW_MS)} ${job.etag}`;
  const { value } = useResource<Explanation>(`/jobs/${job.id}/explain`, version);
  const because = value?.because || job.queue?.reason || job.message;
  return (
    <section class="card pending" aria-labelledby="pending-title">
      <h2 id="pending-title">Why it waits</h2>
      <p>{because ? <Prose text={sentence(because)} /> : "Nothing has looked at it yet."}</p>
      <dl class="facts">
        {facts(job, value, now).map(([name, text]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <p class="soft">
        It starts as soon as {plural(job.min_workers, "worker")} can be placed
        {job.desired_workers > job.min_workers
          ? `, and grows to ${job.desired_workers} as slots come free`
          : ""}
        .
      </p>
      {mayChange && (
        <p class="actions">
          <button
            type="button"
            class="button"
            onClick={() => document.getElementById(CHANGE_BUTTON)?.click()}
          >
            <Icon name="sliders" /> Change priority or workers
          </button>
        </p>
      )}
    </section>
  );
}

function facts(job: Job, found: Explanation | null, now: number): [string, string][] {
  const since = found?.queued_at ?? job.created_at;
  const position = found?.position ?? job.queue?.position ?? null;
  return [
    ["Place in the queue", position === null ? "–" : String(position)],
    ["Waiting for", formatCoarse(Math.max(0, now - Date.parse(since)) / 1000)],
    ["Needs", plural(job.min_workers, "worker")],
    ["Priority", found ? `${found.priority} of 100` : "–"],
    ["Gives up", found?.deadline_at ? formatTime(found.deadline_at, now) : "never"],
  ];
}
