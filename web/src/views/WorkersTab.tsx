import { useResource, useThrottled } from "../live/hooks";
import { Unread } from "../parts/Unread";
import { formatCount, plural } from "../text/format";
import type { Job, Worker } from "../wire";

/** Who trains: one row a worker, in the order of ranks. */
export function WorkersTab({ job }: { job: Job }) {
  const version = useThrottled(job.updated_at, 1000);
  const { value, error, isLoading, reload } = useResource<{ items: Worker[] }>(
    `/jobs/${job.id}/workers`,
    version,
  );
  if (error && !value) return <Unread error={error} onRetry={reload} />;
  if (isLoading) return <div class="card loading" role="status" aria-label="Loading workers" />;
  const workers = [...(value?.items ?? [])].sort(byRank);
  if (workers.length === 0) return <NoWorkers job={job} />;
  return (
    <div class="card scroll-x">
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
            <th scope="col">Node</th>
            <th scope="col" class="number">
              Pid
            </th>
            <th scope="col" class="number">
              Supervisor pid
            </th>
          </tr>
        </thead>
        <tbody>
          {workers.map((worker) => (
            <tr key={worker.worker_id} class={`worker-${worker.state}`} data-worker={worker.worker_id}>
              <td class="number">{worker.rank ?? "–"}</td>
              <th scope="row">{worker.worker_id}</th>
              <td>
                <span class={`state state-${worker.state}`}>{worker.state}</span>
              </td>
              <td>{worker.phase || "–"}</td>
              <td class="number">{worker.step === null ? "–" : formatCount(worker.step)}</td>
              <td>{worker.node}</td>
              <td class="number">
                <code>{worker.pid ?? "–"}</code>
              </td>
              <td class="number">
                <code>{worker.supervisor_pid ?? "–"}</code>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
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
        {job.status === "queued" && job.queue
          ? `The job waits: ${job.queue.reason}.`
          : `The job is ${job.status} and wants ${plural(job.desired_workers, "worker")}.`}
      </p>
    </div>
  );
}
