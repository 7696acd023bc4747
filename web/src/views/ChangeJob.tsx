import { useState } from "preact/hooks";
import { ApiError, get, patch } from "../live/api";
import { FormDialog } from "../parts/FormDialog";
import { useSay } from "../parts/Toasts";
import { patchOf, wishesOf } from "../state/change";
import { isFinal, type Job } from "../wire";

/** Of the button that opens the form. Others press it: a form of their own would go with them, and what was typed too. */
export const CHANGE_BUTTON = "change-job";

interface ChangeJobProps {
  job: Job;
  onJob: (job: Job) => void;
}

/** Priority, bounds of the workers and labels of a job that was submitted; of one that has ended its labels. */
export function ChangeJob({ job, onJob }: ChangeJobProps) {
  const say = useSay();
  const change = async (filled: FormData) => {
    const { etag, ...wished } = Object.fromEntries(filled) as Record<string, string>;
    const changes = patchOf(job, wished);
    if (Object.keys(changes).length === 0) return null;
    try {
      onJob(await patch<Job>(`/jobs/${job.id}`, changes, etag));
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "precondition_failed")) throw error;
      onJob(await get<Job>(`/jobs/${job.id}`)); // before the stream tells it: what opens next shows it
      throw new Error(
        "Somebody changed the job meanwhile: close this, and open it again to see how it stands.",
      );
    }
    say("good", "Changed.");
    return null;
  };
  return (
    <FormDialog
      label="Change"
      id={CHANGE_BUTTON}
      icon="sliders"
      title={`Change ${job.name}`}
      confirm="Change it"
      onSend={change}
    >
      <Fields job={job} />
    </FormDialog>
  );
}

/** The job as it was when the form opened. */
function Fields({ job }: { job: Job }) {
  const [seen] = useState(job);
  const wishes = wishesOf(seen);
  return (
    <>
      <input type="hidden" name="etag" value={seen.etag ?? ""} />
      {!isFinal(seen.status) && (
        <>
          <label class="field">
            Priority, 0 to 100: whose is higher gets slots first
            <input type="number" name="priority" min={0} max={100} required defaultValue={wishes.priority} />
          </label>
          <label class="field">
            Fewest workers, with which it starts
            <input type="number" name="min" min={1} required defaultValue={wishes.min} />
          </label>
          <label class="field">
            Most workers
            <input type="number" name="max" min={1} required defaultValue={wishes.max} />
          </label>
          <p class="soft">
            Training goes on meanwhile. Where the number of workers that is wished no longer lies between the
            two, it moves to the nearer one.
          </p>
        </>
      )}
      <label class="field">
        Labels, one a line
        <textarea
          name="labels"
          rows={3}
          spellcheck={false}
          placeholder="team=vision"
          defaultValue={wishes.labels}
        />
      </label>
    </>
  );
}
