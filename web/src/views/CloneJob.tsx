import { useRef } from "preact/hooks";
import { postOnce, type Unanswered } from "../live/api";
import { FormDialog } from "../parts/FormDialog";
import { jobPath, navigate } from "../router";
import { parseAssignments } from "../text/assignments";
import { formatCount } from "../text/format";
import type { Checkpoint, Job } from "../wire";

interface CloneJobProps {
  job: Job;
  /** What the new job begins from; without one it may be asked to begin from the newest. */
  from?: Checkpoint;
}

/** Run a job again, with changes. */
export function CloneJob({ job, from }: CloneJobProps) {
  const unanswered = useRef<Unanswered>({});
  const clone = async (filled: FormData) => {
    const name = String(filled.get("name")).trim();
    const changes = parseAssignments(String(filled.get("changes")));
    const body = {
      overrides: name === "" ? changes : { ...changes, name },
      from_checkpoint: from?.id ?? (filled.has("newest") ? "latest" : null),
    };
    const made = await postOnce<Job>(unanswered.current, `/jobs/${job.id}/clone`, body);
    navigate(jobPath(made.id));
    return null;
  };
  const shown = from
    ? {
        label: "New job from here",
        title: `Go on from step ${formatCount(from.step)} of ${job.name}?`,
        isSmall: true,
      }
    : { label: "Clone", title: `Run ${job.name} again?`, icon: "copy" as const };
  return (
    <FormDialog {...shown} confirm="Submit" onSend={clone}>
      <p class="soft">A new job with the same code and spec, but for what you change.</p>
      <label class="field">
        Name
        <input type="text" name="name" placeholder="The same with a number" />
      </label>
      <label class="field">
        Changes of the spec, one a line
        <textarea
          name="changes"
          rows={3}
          spellcheck={false}
          placeholder={"config.lr=0.1\nworkers.initial=4"}
        />
      </label>
      {!from && (
        <label class="check">
          <input type="checkbox" name="newest" />
          Begin from its newest checkpoint
        </label>
      )}
    </FormDialog>
  );
}
