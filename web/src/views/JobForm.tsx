import type { ComponentChildren } from "preact";
import { Field } from "../parts/Field";
import { type Draft, kindOfKey } from "../state/draft";
import type { FieldShape } from "../state/schema";
import type { ConfigKey, Recipe } from "../wire";
import { FolderPicker, type UploadedFolder } from "./FolderPicker";

/** Fields of the spec in the order of the form; the rest is for the YAML. */
const WORKERS = ["workers.initial", "workers.min", "workers.max", "workers.autoscale"];
const TRAINING = ["batch.global_size", "seed"];
const MORE = [
  "resources_per_worker.cpu",
  "resources_per_worker.gpu",
  "resources_per_worker.memory",
  "workers.standby",
  "reproducible",
  "checkpoint.every",
  "checkpoint.keep_last",
  "scheduling.priority",
  "limits.max_duration",
  "secrets",
  "labels",
  "env",
];
export const FIELDS: readonly string[] = [
  "name",
  "project",
  "backend",
  "entrypoint",
  ...WORKERS,
  ...TRAINING,
  ...MORE,
];

interface JobFormProps {
  draft: Draft;
  onDraft: (draft: Draft) => void;
  folder: UploadedFolder | null;
  onFolder: (folder: UploadedFolder | null) => void;
  shapes: Readonly<Record<string, FieldShape>>;
  recipes: readonly Recipe[];
  projects: readonly string[];
  /** What is wrong, by field. */
  findings: Readonly<Record<string, string[]>>;
}

/** A spec as a form: the fields that most jobs set. */
export function JobForm(props: JobFormProps) {
  const { draft, onDraft, shapes, findings } = props;
  const field = (name: string, suggestions?: readonly string[]) =>
    shapes[name] && (
      <Field
        key={name}
        name={name}
        shape={shapes[name]}
        value={draft.values[name] ?? ""}
        onChange={(value) => onDraft({ ...draft, values: { ...draft.values, [name]: value } })}
        findings={findings[name] ?? []}
        {...(suggestions ? { suggestions } : {})}
      />
    );
  return (
    <div class="job-form">
      <div class="fields">
        {field("name")}
        {field("project", props.projects)}
      </div>
      <Program {...props} field={field} />
      <Group title="Workers">{WORKERS.map((name) => field(name))}</Group>
      <Group title="Training">{TRAINING.map((name) => field(name))}</Group>
      <details open={MORE.some((name) => findings[name])}>
        <summary>More</summary>
        <div class="fields">{MORE.map((name) => field(name))}</div>
      </details>
    </div>
  );
}

function Group({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <fieldset>
      <legend>{title}</legend>
      <div class="fields">{children}</div>
    </fieldset>
  );
}

interface ProgramProps extends JobFormProps {
  field: (name: string, suggestions?: readonly string[]) => ComponentChildren;
}

function Program({ draft, onDraft, folder, onFolder, recipes, findings, field }: ProgramProps) {
  const source = (name: Draft["source"], label: string) => (
    <button
      type="button"
      aria-pressed={draft.source === name}
      onClick={() => onDraft({ ...draft, source: name })}
    >
      {label}
    </button>
  );
  const recipe = recipes.find((one) => one.name === draft.recipe);
  return (
    <fieldset>
      <legend>Program</legend>
      <div class="segments">
        {source("recipe", "A recipe")}
        {source("folder", "A folder of mine")}
      </div>
      {draft.source === "recipe" ? (
        <>
          <div class="field">
            <label class="hidden" for="recipe">
              Recipe
            </label>
            <select
              id="recipe"
              value={draft.recipe}
              onChange={(event) => onDraft({ ...draft, recipe: event.currentTarget.value })}
            >
              {recipes.map((one) => (
                <option key={one.name}>{one.name}</option>
              ))}
            </select>
            <small class="soft">{recipe?.description}</small>
          </div>
          <div class="fields">
            {recipe?.config.map((key) => {
              const name = `${recipe.name}.${key.name}`;
              return (
                <Field
                  key={name}
                  name={`config.${key.name}`}
                  shape={shapeOfKey(key)}
                  value={draft.recipeConfig[name] ?? ""}
                  onChange={(value) =>
                    onDraft({ ...draft, recipeConfig: { ...draft.recipeConfig, [name]: value } })
                  }
                  findings={findings[`config.${key.name}`] ?? []}
                />
              );
            })}
          </div>
        </>
      ) : (
        <>
          <FolderPicker folder={folder} onFolder={onFolder} />
          {field("backend")}
          {field("entrypoint", folder?.names.filter(isProgram).map((name) => `${name}:train`) ?? [])}
          <div class="field">
            <label for="config">
              <code>config</code>
            </label>
            <textarea
              id="config"
              rows={3}
              spellcheck={false}
              placeholder={"lr: 0.1\nlayers: [64, 64]"}
              value={draft.config}
              aria-describedby="config-about"
              onInput={(event) => onDraft({ ...draft, config: event.currentTarget.value })}
            />
            <small id="config-about" class="soft">
              In YAML; the program finds it as <code>run.config</code>, a function of Ray Train as its
              argument.
            </small>
            <small class="error">{findings.config?.join(" ")}</small>
          </div>
        </>
      )}
    </fieldset>
  );
}

function isProgram(name: string): boolean {
  return name.endsWith(".py") && !name.includes("/");
}

function shapeOfKey(key: ConfigKey): FieldShape {
  return {
    kind: kindOfKey(key),
    choices: [],
    standard: key.default === null ? "" : String(key.default),
    about: key.doc,
  };
}
