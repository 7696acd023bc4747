import { useEffect, useRef } from "preact/hooks";
import { useNow, useResource } from "../live/hooks";
import { Heading } from "../parts/Heading";
import { Prose } from "../parts/Prose";
import { StaleNote } from "../parts/StaleNote";
import { Unread } from "../parts/Unread";
import { Wide } from "../parts/Wide";
import { jobPath } from "../router";
import { type Hues, shareHues } from "../state/slots";
import { formatAgo, formatCoarse, plural, sentence } from "../text/format";
import type { Cluster, ClusterView as Clusters, Node, QueuedJob } from "../wire";
import { NodeRow } from "./NodeRow";

/** Asked for anew this often. */
const RENEW_MS = 2000;

/** The machines: who holds which slot, who waits, and taking a node out of service. */
export function ClusterView({ isAdmin }: { isAdmin: boolean }) {
  const now = useNow(RENEW_MS);
  const clusters = useResource<Clusters>("/cluster", now);
  const queue = useResource<QueuePage>("/queue?limit=200", now);
  useEffect(() => {
    document.title = "Cluster · Rubato";
  }, []);
  const found = clusters.value?.clusters;
  return (
    <main class="page machines">
      <StaleNote of={clusters.error ? clusters : queue} now={now} />
      <div class="page-head">
        <Heading>Cluster</Heading>
      </div>
      {found === undefined &&
        (clusters.error ? (
          <Unread error={clusters.error} onRetry={clusters.reload} />
        ) : (
          <div class="card loading" role="status" aria-label="Loading the cluster" />
        ))}
      {found?.length === 0 && <NoCluster />}
      {found?.map((cluster) => (
        <ClusterCard key={cluster.id} cluster={cluster} now={now} isAdmin={isAdmin} />
      ))}
      {queue.value && <Queue page={queue.value} now={now} />}
    </main>
  );
}

function NoCluster() {
  return (
    <section class="card empty">
      <h2>No cluster has connected yet</h2>
      <p class="soft">
        <code>rubato up</code> starts one on this machine; an agent on another one connects by itself.
      </p>
    </section>
  );
}

function ClusterCard({ cluster, now, isAdmin }: { cluster: Cluster; now: number; isAdmin: boolean }) {
  const nodes = useResource<{ items: Node[] }>(`/clusters/${encodeURIComponent(cluster.id)}/nodes`, now);
  const isOnline = cluster.status === "online";
  const last = useRef<Hues>(new Map());
  const hues = shareHues(last.current, nodes.value?.items ?? []);
  if (nodes.value) last.current = hues;
  return (
    <section class="card" aria-labelledby={`cluster-${cluster.id}`}>
      <div class="card-head">
        <h2 id={`cluster-${cluster.id}`}>{cluster.id}</h2>
        <span class={`state ${isOnline ? "state-ready" : "state-lost"}`}>{cluster.status}</span>
        <span class="grow" />
        <span class="soft">
          {isOnline
            ? `${cluster.slots_used} of ${plural(cluster.slots_total, "slot")} in use`
            : `last heard of ${cluster.last_seen ? formatAgo(cluster.last_seen, now) : "never"}; running jobs train on`}
        </span>
      </div>
      {nodes.error && !nodes.value && <Unread error={nodes.error} onRetry={nodes.reload} />}
      <Wide label={`Nodes of ${cluster.id}`}>
        <table class="plain nodes">
          <caption class="hidden">Nodes of {cluster.id}</caption>
          <thead>
            <tr>
              <th scope="col">Node</th>
              <th scope="col">State</th>
              <th scope="col">Slots</th>
              <th scope="col" class="number">
                Workers
              </th>
              {isAdmin && <th scope="col">Actions</th>}
            </tr>
          </thead>
          <tbody>
            {nodes.value?.items.map((node) => (
              <NodeRow
                key={node.node_id}
                node={node}
                hues={hues}
                now={now}
                isAdmin={isAdmin}
                onChange={nodes.reload}
              />
            ))}
          </tbody>
        </table>
      </Wide>
    </section>
  );
}

/** The first of those who wait; read again too often to read them all. */
interface QueuePage {
  items: QueuedJob[];
  next_cursor: string | null;
}

function Queue({ page, now }: { page: QueuePage; now: number }) {
  const jobs = page.items;
  const count =
    page.next_cursor === null ? plural(jobs.length, "job") : `the first ${jobs.length} jobs of more`;
  return (
    <section class="card" aria-labelledby="queue-title">
      <div class="card-head">
        <h2 id="queue-title">Queue</h2>
        <span class="soft">{jobs.length === 0 ? "nobody waits" : count}</span>
      </div>
      {jobs.length > 0 && (
        <div class="scroll-x">
          <table class="plain">
            <caption class="hidden">Jobs that wait, in their order</caption>
            <thead>
              <tr>
                <th scope="col" class="number">
                  Place
                </th>
                <th scope="col">Job</th>
                <th scope="col">Wants</th>
                <th scope="col" class="number">
                  Priority
                </th>
                <th scope="col">Waits for</th>
                <th scope="col" class="number">
                  Since
                </th>
              </tr>
            </thead>
            <tbody>
              {jobs.map((job) => (
                <tr key={job.job_id}>
                  <td class="number" data-label="Place">
                    {job.position}
                  </td>
                  <th scope="row">
                    <a href={jobPath(job.job_id)}>{job.name}</a>
                  </th>
                  <td data-label="Wants">{wants(job)}</td>
                  <td class="number" data-label="Priority">
                    {job.priority}
                  </td>
                  <td class="row-wide because" data-label="Waits for">
                    <Prose text={sentence(job.because)} />
                  </td>
                  <td class="number" data-label="Since">
                    {formatCoarse(Math.max(0, now - Date.parse(job.queued_at)) / 1000)}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function wants(job: QueuedJob): string {
  const most = plural(job.desired_workers, "worker");
  return job.desired_workers > job.min_workers ? `${most}, at least ${job.min_workers}` : most;
}
