import { useEffect, useRef, useState } from "preact/hooks";
import { getText, post } from "../live/api";
import { useResource, useThrottled } from "../live/hooks";
import { Confirm } from "../parts/Confirm";
import { Prose } from "../parts/Prose";
import { pressedUnless } from "../parts/pressedUnless";
import { Unread } from "../parts/Unread";
import { useAct } from "../parts/useAct";
import { useMayChange } from "../parts/useMe";
import { Wide } from "../parts/Wide";
import { lossOf, slowness, trainedBy } from "../state/workers";
import { formatBytes, formatCount, formatDuration, plural } from "../text/format";
import { isFinal, type Job, type Worker } from "../wire";

/** Who trains: one row a worker, in the order of ranks. */
export function WorkersTab({ job }: { job: Job }) {
  const mayChange = useMayChange(job.project);
  const version = useThrottled(job.updated_at, 1000);
  const { value, error, isLoading, reload } = useResource<{ items: Worker[] }>(
    `/jobs/${job.id}/workers`,
    version,
  );
  if (error && !value) return <Unread error={error} onRetry={reload} />;
  if (isLoading) return <div class="card loading" role="status" aria-label="Loading workers" />;
  const workers = [...(value?.items ?? [])].sort(byRank);
  if (workers.length === 0) return <NoWorkers job={job} />;
  // Nothing is done to single workers of Ray Train: its group leaves as a whole.
  const hasActions = mayChange && !isFinal(job.status) && !job.scaling_restarts;
  return (
    <Wide label={`Workers of ${job.name}`} isCard>
      <table class="plain">
        <caption class="hidden">Workers of {job.name}</caption>
        <thead>
          <tr>
            <th scope="col" class="number">
              Rank
            </th>
            <th scope="col">Worker</th>
            <th scope="col">State</th>
            <th scope="col">Phase</th>
            <th scope="col" class="number">
              Step
            </th>
            <th scope="col" class="number" title="Its share of the last step">
              Microbatches
            </th>
            <th
              scope="col"
              class="number"
              title="Forward and backward of one microbatch, median of the last steps"
            >
              Each takes
            </th>
            <th scope="col" class="number" title="Resident memory of the training process">
              Memory
            </th>
            <th scope="col" class="number" title="Its last sign of life, when that was reported">
              Heard
            </th>
            <th scope="col">Node, device</th>
            <th scope="col" class="number">
              Pid
            </th>
            {hasActions && <th scope="col">Actions</th>}
          </tr>
        </thead>
        <tbody>
          {workers.map((worker) => (
            <tr key={worker.worker_id} data-worker={worker.worker_id}>
              <td class="number" data-label="Rank">
                {worker.rank ?? "–"}
              </td>
              <th scope="row">{worker.worker_id}</th>
              <td data-label="State">
                <span class={`state state-${worker.state}`}>{worker.state}</span>
              </td>
              <td data-label="Phase">{worker.phase || "–"}</td>
              <td class="number" data-label="Step">
                {worker.step === null ? "–" : formatCount(worker.step)}
              </td>
              <td class="number" data-label="Microbatches">
                {worker.microbatches ?? "–"}
              </td>
              <td class="number" data-label="Each takes">
                <Pace worker={worker} workers={workers} />
              </td>
              <td class="number" data-label="Memory">
                {worker.memory_bytes == null ? "–" : formatBytes(worker.memory_bytes)}
              </td>
              <td class="number" data-label="Heard">
                {worker.silent_seconds == null ? "–" : `${formatDuration(worker.silent_seconds)} ago`}
              </td>
              <td data-label="Node, device">
                {worker.node}
                {worker.device && <div class="soft nowrap">{worker.device}</div>}
              </td>
              <td class="number" data-label="Pid">
                <code
                  title={
                    worker.supervisor_pid === null ? undefined : `Its supervisor: ${worker.supervisor_pid}`
                  }
                >
                  {worker.pid ?? "–"}
                </code>
              </td>
              {hasActions && (
                <td class="row-wide">
                  <WorkerActions job={job} worker={worker} trained={trainedBy(workers)} />
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </Wide>
  );
}

/** How long a microbatch takes, and how that compares where it is much longer than with the others. */
function Pace({ worker, workers }: { worker: Worker; workers: readonly Worker[] }) {
  const seconds = worker.microbatch_seconds;
  if (seconds === null) return <>–</>;
  const ratio = slowness(worker, workers);
  if (ratio === null) return <>{formatDuration(seconds)}</>;
  return (
    <span class="slow" title="Microbatches move from it to the faster ones, where that shortens the step">
      {formatDuration(seconds)}
      <div class="nowrap">{ratio.toFixed(1)}× the others</div>
    </span>
  );
}

interface WorkerActionsProps {
  job: Job;
  worker: Worker;
  /** How many train. */
  trained: number;
}

function WorkerActions({ job, worker, trained }: WorkerActionsProps) {
  const { isBusy, act } = useAct();
  const [isLooking, setLooking] = useState(false);
  const path = `/jobs/${job.id}/workers/${encodeURIComponent(worker.worker_id)}`;
  const name = worker.worker_id;
  return (
    <div class="actions nowrap">
      <button
        type="button"
        class="button small"
        title={`Where the threads of ${name} are now`}
        onClick={() => setLooking(true)}
      >
        Stacks
      </button>
      {isLooking && <Stacks path={`${path}/stack`} name={name} onClose={() => setLooking(false)} />}
      <button
        type="button"
        class="button small"
        title={`Let ${name} leave between two steps; another one takes its place`}
        {...pressedUnless(
          isBusy,
          () => void act(() => post(`${path}/drain`), `${name} leaves once another can take its place.`),
        )}
      >
        Drain
      </button>
      <Confirm
        label="Kill"
        title={`Kill ${name}?`}
        confirm="Kill it"
        dismiss="Let it train"
        isDanger
        isSmall
        isHeld={isBusy}
        onConfirm={() => void act(() => post(`${path}/kill`), `${name} is killed; another one is started.`)}
      >
        <p class="soft">Its process gets SIGKILL, as if the machine had failed. {lossOf(worker, trained)}</p>
      </Confirm>
    </div>
  );
}

/** Asks until they are there: a worker answers between two microbatches, its supervisor where it does not. */
function Stacks({ path, name, onClose }: { path: string; name: string; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    dialog.current?.showModal();
    const abort = new AbortController();
    const ask = async () => {
      let found: string | null = null;
      while (found === null) found = await getText(`${path}?wait=10`, abort.signal);
      setText(found);
    };
    ask().catch((error: unknown) => {
      if (!abort.signal.aborted) setProblem(error instanceof Error ? error.message : String(error));
    });
    return () => abort.abort();
  }, [path]);
  return (
    <dialog ref={dialog} class="card dialog stacks" aria-label={`Stacks of ${name}`} onClose={onClose}>
      <h2>Where {name} is</h2>
      {problem && <p class="error">{problem}</p>}
      {text === null && !problem && <p role="status">Asking it…</p>}
      {text !== null && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolled region must be reachable by keyboard
        <pre tabIndex={0}>{text}</pre>
      )}
      <p class="actions end">
        <button type="button" class="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </p>
    </dialog>
  );
}

function byRank(a: Worker, b: Worker): number {
  return (
    (a.rank ?? 1e9) - (b.rank ?? 1e9) || a.worker_id.localeCompare(b.worker_id, undefined, { numeric: true })
  );
}

function NoWorkers({ job }: { job: Job }) {
  return (
    <div class="card empty">
      <h2>No workers</h2>
      <p class="soft">
        {job.status === "queued" && job.queue ? (
          <Prose text={`The job waits: ${job.queue.reason}.`} />
        ) : (
          `The job is ${job.status} and wants ${plural(job.desired_workers, "worker")}.`
        )}
      </p>
    </div>
  );
}
