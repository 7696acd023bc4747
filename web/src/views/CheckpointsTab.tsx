import { API, getAll, patch, remove } from "../live/api";
import { useResource } from "../live/hooks";
import { Confirm } from "../parts/Confirm";
import { Icon } from "../parts/Icon";
import { pressedUnless } from "../parts/pressedUnless";
import { Unread } from "../parts/Unread";
import { useAct } from "../parts/useAct";
import { useMayChange } from "../parts/useMe";
import { formatAgo, formatBytes, formatCount, formatTime, formatValue } from "../text/format";
import type { Checkpoint, Job, JobEvent } from "../wire";
import { CloneJob } from "./CloneJob";

interface CheckpointsTabProps {
  job: Job;
  events: readonly JobEvent[];
  now: number;
}

/** What is saved, newest first, each file a download. */
export function CheckpointsTab({ job, events, now }: CheckpointsTabProps) {
  const mayChange = useMayChange(job.project);
  const version = events.findLast((event) => event.kind.startsWith("checkpoint."))?.position ?? 0;
  const { value, error, isLoading, reload } = useResource<Checkpoint[]>(
    `/jobs/${job.id}/checkpoints?limit=200`,
    version,
    getAll,
  );
  if (error && !value) return <Unread error={error} onRetry={reload} />;
  if (isLoading) return <div class="card loading" role="status" aria-label="Loading checkpoints" />;
  const items = [...(value ?? [])].sort((a, b) => b.attempt - a.attempt || b.step - a.step);
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
        <CheckpointCard
          key={checkpoint.id}
          checkpoint={checkpoint}
          job={job}
          isOurs={!job.scaling_restarts}
          mayChange={mayChange}
          now={now}
          onChange={reload}
        />
      ))}
    </ul>
  );
}

interface CheckpointCardProps {
  checkpoint: Checkpoint;
  job: Job;
  /** Ray Train keeps and deletes its own. */
  isOurs: boolean;
  mayChange: boolean;
  now: number;
  onChange: () => void;
}

function CheckpointCard({ checkpoint, job, isOurs, mayChange, now, onChange }: CheckpointCardProps) {
  return (
    <li class="card checkpoint" data-checkpoint={checkpoint.id}>
      <div>
        <h2>
          Step {formatCount(checkpoint.step)}
          {checkpoint.pinned && <span class="state">pinned</span>}
        </h2>
        <p class="soft">
          <span title={formatTime(checkpoint.created_at, 0)}>{formatAgo(checkpoint.created_at, now)}</span> ·
          attempt {checkpoint.attempt} · {formatBytes(checkpoint.bytes)}
          {typeof checkpoint.metrics?.loss === "number" && ` · loss ${formatValue(checkpoint.metrics.loss)}`}
        </p>
        <code class="soft">{checkpoint.id}</code>
        {!isOurs && <p class="soft">Kept by Ray Train; its event names the folder.</p>}
        {isOurs && mayChange && <CheckpointActions checkpoint={checkpoint} job={job} onChange={onChange} />}
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

interface CheckpointActionsProps {
  checkpoint: Checkpoint;
  job: Job;
  onChange: () => void;
}

function CheckpointActions({ checkpoint, job, onChange }: CheckpointActionsProps) {
  const { isBusy, act } = useAct();
  const path = `/checkpoints/${encodeURIComponent(checkpoint.id)}`;
  const isPinned = checkpoint.pinned === true;
  return (
    <p class="actions">
      <CloneJob job={job} from={checkpoint} />
      <button
        type="button"
        class="button small"
        aria-pressed={isPinned}
        title="A pinned checkpoint is kept, whatever the spec says of older ones"
        {...pressedUnless(isBusy, () => void act(() => patch(path, { pinned: !isPinned }), null, onChange))}
      >
        {isPinned ? "Unpin" : "Pin"}
      </button>
      <Confirm
        label="Delete"
        title={`Delete the checkpoint of step ${formatCount(checkpoint.step)}?`}
        confirm="Delete it"
        dismiss="Keep it"
        isDanger
        isSmall
        isHeld={isBusy || isPinned}
        onConfirm={() => void act(() => remove(path), "Deleted.", onChange)}
      >
        <p class="soft">Its files are removed from the storage. This cannot be taken back.</p>
      </Confirm>
    </p>
  );
}
