import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, dryRun, type Finding, getAll, postYaml, type Unanswered } from "../live/api";
import { useResource } from "../live/hooks";
import { Icon } from "../parts/Icon";
import { Prose } from "../parts/Prose";
import { pressedUnless } from "../parts/pressedUnless";
import { useSay } from "../parts/Toasts";
import { Unread } from "../parts/Unread";
import { jobPath, navigate } from "../router";
import {
  type Draft,
  fieldOf,
  firstDraft,
  isSuggested,
  specText,
  withGuesses,
  withNextName,
} from "../state/draft";
import { resolvedSentence } from "../state/resolved";
import { type FieldShape, type Schema, shapeOf } from "../state/schema";
import type { Job, Project, Recipe } from "../wire";
import type { UploadedFolder } from "./FolderPicker";
import { FIELDS, JobForm } from "./JobForm";
import { PlanPanel } from "./PlanPanel";

/** A check begins when nothing was typed for so long. */
const PAUSE_MS = 400;

interface NewJobProps {
  /** Names that cannot be given. */
  taken: ReadonlySet<string>;
}

/** A button, and behind it a new job: filled in, or written as YAML. */
export function NewJob({ taken }: NewJobProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [isOpen, setOpen] = useState(false);
  const open = () => {
    setOpen(true);
    dialog.current?.showModal();
  };
  const close = () => dialog.current?.close();
  const finish = () => {
    close();
    setOpen(false); // only then: what was closed by mistake is still there
  };
  return (
    <>
      <button type="button" class="button" onClick={open}>
        <Icon name="plus" /> New job
      </button>
      <dialog ref={dialog} class="card dialog new-job" aria-labelledby="new-job-title">
        <h2 id="new-job-title">New job</h2>
        {isOpen && <Loaded taken={taken} onClose={close} onDone={finish} />}
      </dialog>
    </>
  );
}

/** What the form is made of. */
function Loaded(props: Pick<ComposerProps, "taken" | "onClose" | "onDone">) {
  const schema = useResource<Schema>("/schemas/job-spec");
  const recipes = useResource<{ items: Recipe[] }>("/recipes");
  const projects = useResource<Project[]>("/projects?limit=200", 0, getAll);
  const missing = [schema, recipes, projects].find((one) => one.value === null);
  if (missing?.error) return <Unread error={missing.error} onRetry={missing.reload} />;
  if (!schema.value || !recipes.value || !projects.value) return <p class="soft">Loading…</p>;
  const shapes = FIELDS.flatMap((name) => {
    const shape = schema.value && shapeOf(schema.value, name);
    return shape ? [[name, shape] as const] : [];
  });
  return (
    <Composer
      shapes={Object.fromEntries(shapes)}
      recipes={recipes.value.items}
      projects={projects.value.filter((one) => one.role !== "viewer").map((one) => one.name)}
      {...props}
    />
  );
}

interface ComposerProps extends NewJobProps {
  shapes: Readonly<Record<string, FieldShape>>;
  recipes: readonly Recipe[];
  projects: readonly string[];
  onClose: () => void;
  onDone: () => void;
}

/** What the service said of a text. */
interface Verdict {
  text: string;
  /** Empty: it holds. */
  problem: string;
  findings: Finding[];
  /** What it comes to. */
  sentence: string;
  /** What to know of a spec that holds. */
  remarks: string[];
}

function Composer({ shapes, recipes, projects, taken, onClose, onDone }: ComposerProps) {
  const say = useSay();
  const [draft, setDraft] = useState<Draft>(() => firstDraft(taken));
  const [folder, setFolder] = useState<UploadedFolder | null>(null);
  /** The YAML as it was changed by hand; null: as the form makes it. */
  const [byHand, setByHand] = useState<string | null>(null);
  const [isYaml, setYaml] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const unanswered = useRef<Unanswered>({});
  const keys = recipes.find((one) => one.name === draft.recipe)?.config ?? [];
  const kinds = Object.fromEntries(Object.entries(shapes).map(([name, shape]) => [name, shape.kind]));
  const made = specText(draft, folder?.sha256 ?? "", kinds, keys);
  const text = byHand ?? made;
  const isWaiting = byHand === null && draft.source === "folder" && folder === null;
  const [verdict, setVerdict] = useVerdict(isWaiting ? null : text);
  const shown = verdict?.text === text ? verdict : null;
  const { byField, others } = sort(shown?.findings ?? [], [
    ...FIELDS,
    ...keys.map((key) => `config.${key.name}`),
    "config",
  ]);
  // The list may lack the job that has it: then the next one is tried, as nobody chose this one.
  const isOursTaken = byHand === null && isSuggested(draft) && byField.name !== undefined;
  useEffect(() => {
    if (isOursTaken) setDraft((before) => withNextName(before, taken));
  }, [isOursTaken]);
  const submit = async (event: Event) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    setBusy(true);
    try {
      const job = await postYaml<Job>(unanswered.current, "/jobs", text);
      say("good", `Submitted ${job.name}.`);
      onDone();
      navigate(jobPath(job.id));
    } catch (error) {
      setVerdict(refusal(text, error));
      requestAnimationFrame(() => form.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
    } finally {
      setBusy(false);
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)} novalidate>
      <fieldset class="segments" aria-label="How the job is described">
        <button type="button" aria-pressed={!isYaml} onClick={() => setYaml(false)}>
          Form
        </button>
        <button type="button" aria-pressed={isYaml} onClick={() => setYaml(true)}>
          YAML
        </button>
      </fieldset>
      {isYaml ? (
        <textarea
          rows={18}
          spellcheck={false}
          aria-label="Job spec in YAML"
          value={text}
          aria-invalid={!!shown?.problem}
          aria-describedby="spec-verdict"
          onInput={(event) => setByHand(event.currentTarget.value)}
        />
      ) : byHand !== null ? (
        <p class="soft">
          The YAML was changed by hand, and the form no longer follows it.{" "}
          <button type="button" class="button small" onClick={() => setByHand(null)}>
            Drop the changes
          </button>
        </p>
      ) : (
        <JobForm
          draft={draft}
          onDraft={setDraft}
          folder={folder}
          onFolder={(next) => {
            setFolder(next);
            if (next) setDraft((now) => withGuesses(now, next.title, next.names)); // one may have typed on meanwhile
          }}
          shapes={shapes}
          recipes={recipes}
          projects={projects}
          findings={isOursTaken ? { ...byField, name: [] } : byField}
        />
      )}
      <PlanPanel text={text} isReady={shown?.problem === ""} />
      <div class="new-job-foot">
        <div id="spec-verdict" class="verdict" role="status">
          {isWaiting ? (
            <p class="soft">Choose the folder of the program.</p>
          ) : shown === null ? (
            <p class="soft">Checking…</p>
          ) : shown.problem === "" ? (
            <>
              <p>{shown.sentence}</p>
              {shown.remarks.map((remark) => (
                <p key={remark} class="soft">
                  <Prose text={remark} />
                </p>
              ))}
            </>
          ) : (
            <Problems verdict={shown} findings={isYaml ? shown.findings : others} />
          )}
        </div>
        <p class="actions end">
          <button type="button" class="button" onClick={onClose}>
            Close
          </button>
          <button
            type="submit"
            class="button primary"
            disabled={isWaiting || text.trim() === ""}
            {...pressedUnless(isBusy)}
          >
            {isBusy ? "Submitting…" : "Submit"}
          </button>
        </p>
      </div>
    </form>
  );
}

/** Have the service check a text whenever it has stood still for a moment; null: nothing to check. */
function useVerdict(text: string | null): [Verdict | null, (verdict: Verdict) => void] {
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  useEffect(() => {
    if (text === null) return;
    let isStale = false;
    const timer = setTimeout(async () => {
      const next = await dryRun(text).then(
        ({ spec, remarks }) => ({
          text,
          problem: "",
          findings: [],
          sentence: resolvedSentence(spec),
          remarks,
        }),
        (error) => refusal(text, error),
      );
      if (!isStale) setVerdict(next);
    }, PAUSE_MS);
    return () => {
      isStale = true;
      clearTimeout(timer);
    };
  }, [text]);
  return [verdict, setVerdict];
}

function refusal(text: string, error: unknown): Verdict {
  const findings = error instanceof ApiError ? error.findings : [];
  return {
    text,
    problem: error instanceof Error ? error.message : String(error),
    findings,
    sentence: "",
    remarks: [],
  };
}

/** What is wrong, by field; and what belongs to none. */
function sort(findings: readonly Finding[], fields: readonly string[]) {
  const byField: Record<string, string[]> = {};
  const others: Finding[] = [];
  for (const finding of findings) {
    const field = fieldOf(finding.path, fields);
    if (field === null) others.push(finding);
    else byField[field] = [...(byField[field] ?? []), finding.message];
  }
  return { byField, others };
}

function Problems({ verdict, findings }: { verdict: Verdict; findings: readonly Finding[] }) {
  if (verdict.findings.length === 0) return <p class="error">{verdict.problem}</p>;
  if (findings.length === 0) {
    return (
      <p class="error">
        See above: <code>{[...new Set(verdict.findings.map((one) => one.path))].join(", ")}</code>
      </p>
    );
  }
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
