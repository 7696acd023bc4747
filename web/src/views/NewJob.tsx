import { useRef, useState } from "preact/hooks";
import { ApiError, type Finding, postYaml, type Unanswered } from "../live/api";
import { Icon } from "../parts/Icon";
import { useSay } from "../parts/Toasts";
import { jobPath, navigate } from "../router";
import type { Job } from "../wire";

const STARTER = `name: digits
recipe: image-classifier        # or char-lm
config: {epochs: 20}
workers: {initial: 2, min: 1, max: 8}
batch: {global_size: 256}
seed: 0
`;

/** A button, and behind it a spec to edit and submit. */
export function NewJob() {
  const dialog = useRef<HTMLDialogElement>(null);
  return (
    <>
      <button type="button" class="button" onClick={() => dialog.current?.showModal()}>
        <Icon name="plus" /> New job
      </button>
      <dialog ref={dialog} class="card dialog new-job" aria-labelledby="new-job-title">
        <SpecForm onClose={() => dialog.current?.close()} />
      </dialog>
    </>
  );
}

function SpecForm({ onClose }: { onClose: () => void }) {
  const say = useSay();
  const [text, setText] = useState(STARTER);
  const unanswered = useRef<Unanswered>({});
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<{ message: string; findings: Finding[] } | null>(null);
  const send = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const job = await postYaml<Job>(unanswered.current, "/jobs", text);
      say("good", `Submitted ${job.name}.`);
      onClose();
      navigate(jobPath(job.id));
    } catch (error) {
      const findings = error instanceof ApiError ? error.findings : [];
      setProblem({ message: error instanceof Error ? error.message : String(error), findings });
    } finally {
      setBusy(false);
    }
  };
  return (
    <form onSubmit={(event) => void send(event)}>
      <h2 id="new-job-title">New job</h2>
      <p class="soft">
        A recipe runs as it is. A program of your own is packed and submitted by the command line:{" "}
        <code>rubato submit job.yaml</code>
      </p>
      <label class="hidden" for="spec">
        Job spec in YAML
      </label>
      <textarea
        id="spec"
        rows={12}
        spellcheck={false}
        value={text}
        aria-invalid={problem !== null}
        aria-describedby="spec-problem"
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <div id="spec-problem" role="alert">
        {problem && <Problems {...problem} />}
      </div>
      <p class="actions end">
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
        <button type="submit" class="button primary" disabled={isBusy || text.trim() === ""}>
          {isBusy ? "Submitting…" : "Submit"}
        </button>
      </p>
    </form>
  );
}

function Problems({ message, findings }: { message: string; findings: Finding[] }) {
  if (findings.length === 0) return <p class="error">{message}</p>;
  return (
    <ul class="findings">
      {findings.map((finding) => (
        <li key={finding.path + finding.message}>
          {finding.path && <code>{finding.path}</code>} {finding.message}
        </li>
      ))}
    </ul>
  );
}
