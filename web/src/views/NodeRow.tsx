import { post } from "../live/api";
import { Confirm } from "../parts/Confirm";
import { pressedUnless } from "../parts/pressedUnless";
import { useAct } from "../parts/useAct";
import { jobPath } from "../router";
import { describeSlots, type Hues, type Slot, slotsOf } from "../state/slots";
import { formatAgo, formatBytes, formatCoarse, plural } from "../text/format";
import type { Node } from "../wire";

interface NodeRowProps {
  node: Node;
  hues: Hues;
  now: number;
  isAdmin: boolean;
  onChange: () => void;
}

/** A machine: its slots as squares, and what an administrator may do with it. */
export function NodeRow({ node, hues, now, isAdmin, onChange }: NodeRowProps) {
  const name = node.hostname || node.address;
  return (
    <tr data-node={node.node_id}>
      <th scope="row">
        {name}
        <small class="soft">{[node.address, ...equipment(node)].join(" · ")}</small>
      </th>
      <td data-label="State">
        <span class={`state state-${node.state}`}>{node.state}</span>
        {node.by !== null && <small class="soft">{marked(node, now)}</small>}
      </td>
      <td data-label="Slots" class="row-wide">
        <Slots node={node} hues={hues} />
      </td>
      <td class="number" data-label="Workers">
        {node.workers_left}
      </td>
      {isAdmin && (
        <td class="row-wide">
          <Actions node={node} name={name} onChange={onChange} />
        </td>
      )}
    </tr>
  );
}

/** What workers may ask for besides slots. */
function equipment(node: Node): string[] {
  return [...node.accelerators, ...(node.memory === null ? [] : [formatBytes(node.memory)])];
}

function marked(node: Node, now: number): string {
  const since = node.since ? `, ${formatAgo(node.since, now)}` : "";
  const left =
    node.drain_within_s === null ? "" : `; it is taken away within ${formatCoarse(node.drain_within_s)}`;
  return `by ${node.by === "ray" ? "the cluster" : node.by}${since}${left}`;
}

function Slots({ node, hues }: { node: Node; hues: Hues }) {
  const slots = slotsOf(node);
  return (
    <>
      <span class="hidden">{describeSlots(node)}</span>
      <span class="slots" aria-hidden="true">
        {slots.map((slot, place) => (
          <Square key={place} slot={slot} hues={hues} />
        ))}
      </span>
      <span class="slot-jobs">
        {node.jobs.map((job) => (
          <a key={job.job_id} href={jobPath(job.job_id)}>
            <i class={`slot slot-job hue-${hues.get(job.job_id)}`} aria-hidden="true" /> {job.name}{" "}
            <span class="soft">{plural(job.workers, "worker")}</span>
          </a>
        ))}
      </span>
    </>
  );
}

const WORDS = { other: "Of others", free: "Free", shut: "Closed: the node takes no new workers" };

function Square({ slot, hues }: { slot: Slot; hues: Hues }) {
  return slot.kind === "job" ? (
    <i class={`slot slot-job hue-${hues.get(slot.jobId)}`} title={slot.name} />
  ) : (
    <i class={`slot slot-${slot.kind}`} title={WORDS[slot.kind]} />
  );
}

function Actions({ node, name, onChange }: { node: Node; name: string; onChange: () => void }) {
  const { isBusy, act } = useAct();
  const send = (verb: string, done: string) =>
    void act(() => post(`/nodes/${encodeURIComponent(node.node_id)}/${verb}`), done, onChange);
  if (node.by === "ray") return <span class="soft">the cluster takes it away</span>;
  const isReady = node.state === "ready";
  // One button for both ways, which keeps the focus.
  const turn = () =>
    isReady
      ? send("cordon", `${name} takes no new workers`)
      : send("uncordon", `${name} takes workers again`);
  return (
    <div class="actions nowrap">
      <button
        type="button"
        class="button small"
        title={isReady ? "Give it no new workers; those that are there stay" : undefined}
        {...pressedUnless(isBusy, turn)}
      >
        {isReady ? "Cordon" : "Uncordon"}
      </button>
      {(isReady || node.state === "cordoned") && (
        <Drain name={name} node={node} isBusy={isBusy} send={send} />
      )}
    </div>
  );
}

interface DrainProps {
  node: Node;
  name: string;
  isBusy: boolean;
  send: (verb: string, done: string) => void;
}

function Drain({ node, name, isBusy, send }: DrainProps) {
  return (
    <Confirm
      label="Drain"
      title={`Drain ${name}?`}
      confirm="Drain"
      isSmall
      isHeld={isBusy}
      onConfirm={() => send("drain", `${name} is draining`)}
    >
      <p>
        It takes no new workers, and{" "}
        {node.workers_left === 0 ? "none is there" : `${plural(node.workers_left, "worker")} leave`}, each
        once its replacement elsewhere has joined, where there is room. Nothing is computed twice, and the
        weights stay the same bits.
      </p>
    </Confirm>
  );
}
