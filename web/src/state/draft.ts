/** A new job as it is filled in, and the spec in YAML that it makes. Pure. */

import { isNumber, put, type Tree, toNumber } from "../text/typed";
import { toYaml } from "../text/yaml";
import type { ConfigKey } from "../wire";
import type { Kind } from "./schema";

export interface Draft {
  /** The name that nobody typed. */
  suggested: string;
  source: "recipe" | "folder";
  recipe: string;
  /** `config:` of a program of one's own, as YAML. */
  config: string;
  /** What was filled in, by path: `name`, `workers.initial`. What is blank keeps its default. */
  values: Readonly<Record<string, string>>;
  /** The same for the keys of `config:` of each recipe, by `recipe.key`. */
  recipeConfig: Readonly<Record<string, string>>;
}

export const FIRST_DRAFT: Draft = {
  suggested: "digits",
  source: "recipe",
  recipe: "image-classifier",
  config: "",
  values: { name: "digits", "workers.initial": "2" },
  recipeConfig: { "image-classifier.epochs": "20" },
};

/** One to begin with, under a name that none of these jobs has. */
export function firstDraft(taken: ReadonlySet<string>): Draft {
  return taken.has(FIRST_DRAFT.suggested) ? withNextName(FIRST_DRAFT, taken) : FIRST_DRAFT;
}

/** Whether its name is the one that was suggested. */
export function isSuggested(draft: Draft): boolean {
  return draft.values.name === draft.suggested;
}

/** With the next name that is free, in place of the suggested one: `digits-2`. */
export function withNextName(draft: Draft, taken: ReadonlySet<string>): Draft {
  const [, stem = "", number = "1"] = /^(.*?)(?:-(\d+))?$/.exec(draft.suggested) ?? [];
  let next = Number(number) + 1;
  while (taken.has(`${stem}-${next}`)) next += 1;
  const suggested = `${stem}-${next}`;
  return { ...draft, suggested, values: { ...draft.values, name: suggested } };
}

/** With what a folder lets one guess, by its name and those of its files, where nobody has said it. */
export function withGuesses(draft: Draft, title: string, files: readonly string[]): Draft {
  const name = title
    .toLowerCase()
    .replace(/[^a-z0-9._-]+/g, "-")
    .replace(/^[-._]+/, "")
    .slice(0, 63)
    .replace(/[-._]+$/, "");
  const isNamed = !!draft.values.name && !isSuggested(draft);
  const guessed = {
    ...(name && !isNamed ? { name } : {}),
    ...(files.includes("train.py") && !draft.values.entrypoint ? { entrypoint: "train.py:train" } : {}),
  };
  const suggested = guessed.name ?? draft.suggested; // the next folder may change what this one suggested
  return { ...draft, suggested, values: { ...draft.values, ...guessed } };
}

/** Which field of the form a path of a finding belongs to: itself, or the field that it lies in. */
export function fieldOf(path: string, fields: readonly string[]): string | null {
  return fields.find((field) => path === field || path.startsWith(`${field}.`)) ?? null;
}

/**
 * The spec in YAML.
 *
 * @param folder SHA-256 of the folder, once it is uploaded
 * @param kinds how each field of `values` is written
 * @param keys the keys of `config:` of the recipe that is chosen
 */
export function specText(
  draft: Draft,
  folder: string,
  kinds: Readonly<Record<string, Kind>>,
  keys: readonly ConfigKey[],
): string {
  const isRecipe = draft.source === "recipe";
  const spec: Tree = {};
  const program = isRecipe ? ["recipe"] : ["backend", "entrypoint", "package"];
  const given: Record<string, string> = { ...draft.values, recipe: draft.recipe, package: folder };
  for (const path of ["name", ...program, ...Object.keys(kinds).filter((one) => !PROGRAM.has(one))]) {
    const text = (given[path] ?? "").trim();
    if (text !== "") put(spec, path, typedAs(text, kinds[path] ?? "text"));
  }
  if (isRecipe) {
    for (const key of keys) {
      const text = (draft.recipeConfig[`${draft.recipe}.${key.name}`] ?? "").trim();
      if (text !== "") put(spec, `config.${key.name}`, typedAs(text, kindOfKey(key)));
    }
  }
  const text = `${toYaml(spec)}\n`;
  return isRecipe || draft.config.trim() === "" ? text : `${text}config:\n${indented(draft.config)}\n`;
}

const PROGRAM = new Set(["name", "recipe", "backend", "entrypoint", "package"]);

/** How a key of a recipe is filled in, by its annotation, such as `int | None`. */
export function kindOfKey(key: ConfigKey): Kind {
  if (key.type === "bool") return "flag";
  return /^(int|float)\b/.test(key.type) ? "number" : "text";
}

/** What is typed as the value that it means; a number that is none goes as it is, and the service says what is wrong. */
function typedAs(text: string, kind: Kind): unknown {
  switch (kind) {
    case "number":
    case "mixed":
      return isNumber(text) ? toNumber(text) : text;
    case "flag":
      return text === "true" || text === "false" ? text === "true" : text;
    case "list":
      return text
        .split(",")
        .map((one) => one.trim())
        .filter((one) => one !== "");
    case "pairs":
      return Object.fromEntries(text.split("\n").flatMap(pairOf));
    default:
      return text;
  }
}

function pairOf(line: string): [string, string][] {
  const text = line.trim();
  if (text === "") return [];
  const cut = text.indexOf("=");
  return cut < 0 ? [[text, ""]] : [[text.slice(0, cut).trim(), text.slice(cut + 1).trim()]];
}

function indented(text: string): string {
  return text
    .trimEnd()
    .split("\n")
    .map((line) => (line.trim() === "" ? "" : `  ${line}`))
    .join("\n");
}
