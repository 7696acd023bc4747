import { useRef, useState } from "preact/hooks";
import { post } from "../live/api";
import { Icon } from "../parts/Icon";
import { useSay } from "../parts/Toasts";
import { isFinal, type Job, type Status } from "../wire";

type Verb = "pause" | "resume" | "checkpoint" | "cancel";

/** From which statuses a verb makes sense; the service has the last word. */
const CAN: Record<Verb, readonly Status[]> = {
  pause: ["queued", "starting", "running", "recovering"],
  resume: ["pausing", "paused"],
  checkpoint: ["running"],
  cancel: ["queued", "starting", "running", "recovering", "pausing", "paused", "stopping"],
};

const DONE: Record<Verb, string> = {
  pause: "Asked to pause. The job first writes a checkpoint.",
  resume: "Asked to resume.",
  checkpoint: "Asked for a checkpoint at the next step.",
  cancel: "Asked to cancel.",
};

export function JobActions({ job, onJob }: { job: Job; onJob: (job: Job) => void }) {
  const say = useSay();
  const [busy, setBusy] = useState<Verb | null>(null);
  const dialog = useRef<HTMLDialogElement>(null);
  const send = async (verb: Verb, body: object = {}) => {
    setBusy(verb);
    try {
      onJob(await post<Job>(`/jobs/${job.id}/${verb}`, body));
      say("good", DONE[verb]);
    } catch (error) {
      say("bad", error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(null);
    }
  };
  if (isFinal(job.status)) return null;
  const can = (verb: Verb) => CAN[verb].includes(job.status) && busy === null;
  return (
    <div class="actions">
      {CAN.resume.includes(job.status) ? (
        <button type="button" class="button" disabled={!can("resume")} onClick={() => void send("resume")}>
          <Icon name="play" /> Resume
        </button>
      ) : (
        <button type="button" class="button" disabled={!can("pause")} onClick={() => void send("pause")}>
          <Icon name="pause" /> Pause
        </button>
      )}
      <button
        type="button"
        class="button"
        disabled={!can("checkpoint")}
        onClick={() => void send("checkpoint")}
      >
        <Icon name="save" /> Checkpoint
      </button>
      <button
        type="button"
        class="button danger"
        disabled={!can("cancel")}
        onClick={() => dialog.current?.showModal()}
      >
        <Icon name="stop" /> Cancel
      </button>
      <CancelDialog
        dialog={dialog}
        job={job}
        onConfirm={(isForced) => {
          dialog.current?.close();
          void send("cancel", { force: isForced });
        }}
      />
    </div>
  );
}

interface CancelDialogProps {
  dialog: { current: HTMLDialogElement | null };
  job: Job;
  onConfirm: (isForced: boolean) => void;
}

function CancelDialog({ dialog, job, onConfirm }: CancelDialogProps) {
  const [isForced, setForced] = useState(false);
  return (
    <dialog ref={dialog} class="card dialog" aria-labelledby="cancel-title">
      <h2 id="cancel-title">Cancel {job.name}?</h2>
      <p class="soft">
        The workers stop and their slots become free. Checkpoints written so far are kept; a cancelled job
        cannot be resumed.
      </p>
      <label class="check">
        <input
          type="checkbox"
          checked={isForced}
          onChange={(event) => setForced(event.currentTarget.checked)}
        />
        Force: kill at once, do not wait for the step to end
      </label>
      <p class="actions end">
        <button type="button" class="button" onClick={() => dialog.current?.close()}>
          Keep training
        </button>
        <button type="button" class="button danger solid" onClick={() => onConfirm(isForced)}>
          Cancel the job
        </button>
      </p>
    </dialog>
  );
}
