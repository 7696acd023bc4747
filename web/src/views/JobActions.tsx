import { useState } from "preact/hooks";
import { post, remove } from "../live/api";
import { Confirm } from "../parts/Confirm";
import { Icon, type IconName } from "../parts/Icon";
import { pressedUnless } from "../parts/pressedUnless";
import { useAct } from "../parts/useAct";
import { useMayChange } from "../parts/useMe";
import { navigate } from "../router";
import { comparePath } from "../state/compare";
import { canAsk, type Verb } from "../state/job";
import { isFinal, type Job } from "../wire";
import { ChangeJob } from "./ChangeJob";
import { CloneJob } from "./CloneJob";

/** A pause that is forced, or of Ray Train's programs, which report their checkpoints when they want to. */
const PAUSED_FROM_NEWEST = "Asked to pause. The job will go on from its newest checkpoint.";

const DONE: Record<Verb, string> = {
  pause: "Asked to pause. The job first writes a checkpoint.",
  resume: "Asked to resume.",
  checkpoint: "Asked for a checkpoint at the next step.",
  cancel: "Asked to cancel.",
};

/** The verbs of a job, one at a time. */
function useVerbs(job: Job, onJob?: (job: Job) => void) {
  const { isBusy, act } = useAct();
  // The answer tells the whole job; one of a list may not.
  const told = (verb: Verb, body: object, answer: Job) =>
    verb === "pause" && (answer.scaling_restarts || "force" in body) ? PAUSED_FROM_NEWEST : DONE[verb];
  const send = (verb: Verb, body: object = {}) =>
    void act(
      () => post<Job>(`/jobs/${job.id}/${verb}`, body),
      (answer) => told(verb, body, answer),
      onJob,
    );
  return { isBusy, send };
}

/** What can be done with a job where it is one of many. */
export function RowActions({ job }: { job: Job }) {
  const { isBusy, send } = useVerbs(job);
  const mayChange = useMayChange(job.project);
  if (!mayChange || isFinal(job.status)) return null;
  const isResumable = canAsk("resume", job.status);
  const verb = isResumable ? "resume" : "pause";
  const label = isResumable ? "Resume" : "Pause";
  return (
    <span class="row-actions">
      <button
        type="button"
        class="icon-button"
        aria-label={`${label} ${job.name}`}
        title={label}
        {...pressedUnless(isBusy || !canAsk(verb, job.status), () => send(verb))}
      >
        <Icon name={isResumable ? "play" : "pause"} />
      </button>
      <Cancel job={job} onConfirm={send} isBusy={isBusy} isIcon />
    </span>
  );
}

/** What can be done with a job as a whole. */
export function JobActions({ job, onJob }: { job: Job; onJob: (job: Job) => void }) {
  const { isBusy, send } = useVerbs(job, onJob);
  const mayChange = useMayChange(job.project);
  const button = (verb: Verb, label: string, icon: IconName) => (
    <button
      type="button"
      class="button"
      {...pressedUnless(isBusy || !canAsk(verb, job.status), () => send(verb))}
    >
      <Icon name={icon} /> {label}
    </button>
  );
  return (
    <div class="actions">
      {mayChange && !isFinal(job.status) && (
        <>
          {canAsk("resume", job.status)
            ? button("resume", "Resume", "play")
            : button("pause", "Pause", "pause")}
          {job.status === "pausing" && <PauseAtOnce job={job} onConfirm={send} isBusy={isBusy} />}
          {!job.scaling_restarts && button("checkpoint", "Checkpoint", "save")}
        </>
      )}
      <a class="button" href={comparePath({ jobs: [job.id] })}>
        <Icon name="compare" /> Compare with…
      </a>
      {mayChange && <ChangeJob job={job} onJob={onJob} />}
      {mayChange && <CloneJob job={job} />}
      {mayChange && isFinal(job.status) && <Delete job={job} />}
      {mayChange && !isFinal(job.status) && <Cancel job={job} onConfirm={send} isBusy={isBusy} />}
    </div>
  );
}

interface ConfirmedProps {
  job: Job;
  onConfirm: (verb: Verb, body: object) => void;
  isBusy: boolean;
  isIcon?: boolean;
}

/** For a pause that takes too long: a step that does not end, a storage or a cluster that does not answer. */
function PauseAtOnce({ job, onConfirm, isBusy }: ConfirmedProps) {
  return (
    <Confirm
      label="Pause at once"
      icon="pause"
      title={`Pause ${job.name} at once?`}
      confirm="Pause at once"
      dismiss="Let it save"
      isDanger
      isHeld={isBusy}
      onConfirm={() => onConfirm("pause", { force: true })}
    >
      <p class="soft">
        The workers are killed, without the checkpoint that a pause writes; the job goes on from its newest
        one. Where nothing is heard of its cluster any more, it counts as paused all the same: if the cluster
        comes back, its workers train on until they learn of it.
      </p>
    </Confirm>
  );
}

function Cancel({ job, onConfirm, isBusy, isIcon = false }: ConfirmedProps) {
  const [isForced, setForced] = useState(false);
  return (
    <Confirm
      label="Cancel"
      icon="stop"
      title={`Cancel ${job.name}?`}
      confirm="Cancel the job"
      dismiss="Keep training"
      isDanger
      isIcon={isIcon}
      isHeld={isBusy || !canAsk("cancel", job.status)}
      onConfirm={() => onConfirm("cancel", { force: isForced })}
    >
      <p class="soft">
        The workers stop and their slots become free. Checkpoints written so far are kept; a cancelled job
        cannot be resumed, but cloned from one of them.
      </p>
      <Check isOn={isForced} onChange={setForced}>
        Force: kill at once, do not wait for the step to end
      </Check>
    </Confirm>
  );
}

function Delete({ job }: { job: Job }) {
  const { isBusy, act } = useAct();
  const [keeps, setKeeps] = useState(false);
  const path = `/jobs/${job.id}${keeps ? "?keep_checkpoints=true" : ""}`;
  return (
    <Confirm
      label="Delete"
      icon="cross"
      title={`Delete ${job.name}?`}
      confirm="Delete the job"
      dismiss="Keep it"
      isDanger
      isHeld={isBusy}
      onConfirm={() =>
        void act(
          () => remove(path),
          `Deleted ${job.name}.`,
          () => navigate("/"),
        )
      }
    >
      <p class="soft">Its metrics, logs, events and checkpoints go with it. This cannot be taken back.</p>
      <Check isOn={keeps} onChange={setKeeps}>
        Leave its checkpoints on the storage
      </Check>
    </Confirm>
  );
}

interface CheckProps {
  isOn: boolean;
  onChange: (isOn: boolean) => void;
  children: string;
}

function Check({ isOn, onChange, children }: CheckProps) {
  return (
    <label class="check">
      <input type="checkbox" checked={isOn} onChange={(event) => onChange(event.currentTarget.checked)} />
      {children}
    </label>
  );
}
