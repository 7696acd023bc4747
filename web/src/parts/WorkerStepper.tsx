import { useEffect, useState } from "preact/hooks";
import { post } from "../live/api";
import { restartNote, scaleNote } from "../state/events";
import type { Job, JobEvent } from "../wire";
import { Icon } from "./Icon";
import { pressedUnless } from "./pressedUnless";
import { useSay } from "./Toasts";

interface WorkerStepperProps {
  job: Job;
  events: readonly JobEvent[];
  onJob: (job: Job) => void;
}

/** Choose a worker count between the job's bounds and ask for it; then watch until the cluster has it. */
export function WorkerStepper({ job, events, onJob }: WorkerStepperProps) {
  const [wish, setWish] = useState<number | null>(null);
  /** What stands in the field while one types: it may be no number, or not one yet. */
  const [typed, setTyped] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const say = useSay();
  // A change from elsewhere (the command line) takes the place of a wish that was never sent, but of none being typed.
  useEffect(() => {
    if (typed === null) setWish(null);
  }, [job.desired_workers]);
  const count = wish ?? job.desired_workers;
  const isInside = typed !== "" && count >= job.min_workers && count <= job.max_workers;
  const choose = (next: number) => {
    setTyped(null);
    if (Number.isFinite(next))
      setWish(Math.min(job.max_workers, Math.max(job.min_workers, Math.round(next))));
  };
  // While one types, "1" may be the beginning of "12": what is out of bounds is put right on leaving the field.
  const type = (text: string) => {
    setTyped(text);
    if (text !== "" && Number.isInteger(Number(text))) setWish(Number(text));
  };
  const scale = async (event: Event) => {
    event.preventDefault();
    setTyped(null);
    setBusy(true);
    try {
      onJob(await post<Job>(`/jobs/${job.id}/scale`, { workers: count }));
    } catch (error) {
      say("bad", error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  const note = scaleNote(job, events);
  const cost = restartNote(job, events);
  const hasBounds = job.min_workers < job.max_workers;
  return (
    <form class="stepper" onSubmit={(event) => void scale(event)}>
      <div class="stepper-row">
        <label for="workers">Workers</label>
        <div class="stepper-box">
          <button
            type="button"
            aria-label="One worker fewer"
            {...pressedUnless(count <= job.min_workers, () => choose(count - 1))}
          >
            <Icon name="minus" />
          </button>
          <input
            id="workers"
            type="number"
            inputMode="numeric"
            min={job.min_workers}
            max={job.max_workers}
            value={typed ?? count}
            disabled={!hasBounds}
            aria-describedby="workers-note"
            aria-invalid={!isInside}
            onInput={(event) => type(event.currentTarget.value)}
            onBlur={(event) => choose(event.currentTarget.valueAsNumber)}
          />
          <button
            type="button"
            aria-label="One worker more"
            {...pressedUnless(count >= job.max_workers, () => choose(count + 1))}
          >
            <Icon name="plus" />
          </button>
        </div>
        <button
          type="submit"
          class="button primary"
          {...pressedUnless(isBusy || !isInside || count === job.desired_workers)}
        >
          {isBusy ? "Asking…" : "Scale"}
        </button>
      </div>
      <p id="workers-note" class="stepper-note" role="status" data-note={note ? "scaling" : "bounds"}>
        {note ? (
          <>
            <i class="pulse" aria-hidden="true" />
            <span>{note}</span>
          </>
        ) : (
          <span class="soft">
            {hasBounds ? `${job.min_workers} to ${job.max_workers}` : "fixed by the spec"}
            {hasBounds && cost && `. ${cost}`}
          </span>
        )}
      </p>
    </form>
  );
}
