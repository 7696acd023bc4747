import { API } from "../live/api";
import { useResource } from "../live/hooks";
import { Icon } from "../parts/Icon";
import { Unread } from "../parts/Unread";
import { formatAgo, formatBytes, formatCount, formatTime, formatValue } from "../text/format";
import type { Checkpoint, Job, JobEvent } from "../wire";

interface CheckpointsTabProps {
  job: Job;
  events: readonly JobEvent[];
  now: number;
}

/** What is saved, newest first, each file a download. */
export function CheckpointsTab({ job, events, now }: CheckpointsTabProps) {
  const version = events.findLast((event) => event.kind.startsWith("checkpoint."))?.position ?? 0;
  const { value, error, isLoading, reload } = useResource<{ items: Checkpoint[] }>(
    `/jobs/${job.id}/checkpoints`,
    version,
  );
  if (error && !value) return <Unread error={error} onRetry={reload} />;
  if (isLoading) return <div class="card loading" role="status" aria-label="Loading checkpoints" />;
  const items = [...(value?.items ?? [])].sort((a, b) => b.attempt - a.attempt || b.step - a.step);
  if (items.length === 0) {
    return (
      <div class="card empty">
        <h2>No checkpoints yet</h2>
        <p class="soft">
          One is written as <code>checkpoint</code> of the spec says (every 30 seconds where it says nothing),
          and whenever you ask.
        </p>
      </div>
    );
  }
  return (
    <ul class="checkpoints">
      {items.map((checkpoint) => (
        <CheckpointCard key={checkpoint.id} checkpoint={checkpoint} now={now} />
      ))}
    </ul>
  );
}

function CheckpointCard({ checkpoint, now }: { checkpoint: Checkpoint; now: number }) {
  return (
    <li class="card checkpoint" data-checkpoint={checkpoint.id}>
      <div>
        <h3>Step {formatCount(checkpoint.step)}</h3>
        <p class="soft">
          <span title={formatTime(checkpoint.created_at, 0)}>{formatAgo(checkpoint.created_at, now)}</span> ·
          attempt {checkpoint.attempt} · {formatBytes(checkpoint.bytes)}
          {typeof checkpoint.metrics?.loss === "number" && ` · loss ${formatValue(checkpoint.metrics.loss)}`}
        </p>
        <code class="soft">{checkpoint.id}</code>
      </div>
      <ul class="files">
        {checkpoint.files.map((file) => (
          <li key={file.name}>
            <a
              download={file.name}
              href={`${API}/checkpoints/${encodeURIComponent(checkpoint.id)}/files/${encodeURIComponent(file.name)}`}
              title={`SHA-256 ${file.sha256}`}
            >
              <Icon name="download" />
              {file.name}
            </a>
            <span class="soft">{formatBytes(file.bytes)}</span>
          </li>
        ))}
      </ul>
    </li>
  );
}
