import { describe, expect, it } from "vitest";
import type { ConfigKey } from "../wire";
import {
  type Draft,
  FIRST_DRAFT,
  fieldOf,
  firstDraft,
  isSuggested,
  specText,
  withGuesses,
  withNextName,
} from "./draft";
import type { Kind } from "./schema";

const kinds: Record<string, Kind> = {
  name: "text",
  backend: "choice",
  entrypoint: "text",
  project: "text",
  "workers.initial": "number",
  "workers.max": "number",
  "checkpoint.every": "mixed",
  seed: "number",
  reproducible: "flag",
  secrets: "list",
  env: "pairs",
};
const keys: ConfigKey[] = [
  { name: "epochs", type: "int | None", default: null, doc: "" },
  { name: "lr", type: "float", default: 0.1, doc: "" },
  { name: "augment", type: "bool", default: false, doc: "" },
];
const draft = (fields: Partial<Draft>): Draft => ({ ...FIRST_DRAFT, recipeConfig: {}, ...fields });

describe("specText", () => {
  it("says only what was filled in", () => {
    const text = specText(
      draft({ values: { name: "digits", "workers.max": " ", seed: "" } }),
      "",
      kinds,
      keys,
    );
    expect(text).toBe("name: digits\nrecipe: image-classifier\n");
  });

  it("writes each field as what it is", () => {
    const values = {
      name: "007",
      "workers.initial": "2",
      "checkpoint.every": "5m",
      seed: "9223372036854775807",
      reproducible: "false",
      secrets: "A, B,",
      env: "A=1\n\nB = x=y\nC",
    };
    expect(specText(draft({ values }), "", kinds, keys).split("\n")).toEqual([
      'name: "007"',
      "recipe: image-classifier",
      "workers:",
      "  initial: 2",
      "checkpoint:",
      '  every: "5m"',
      "seed: 9223372036854775807",
      "reproducible: false",
      "secrets:",
      "  - A",
      "  - B",
      "env:",
      '  A: "1"',
      "  B: x=y",
      '  C: ""',
      "",
    ]);
  });

  it("leaves to the service what is no number", () => {
    const text = specText(
      draft({ values: { name: "a", seed: "many", "checkpoint.every": "30" } }),
      "",
      kinds,
      keys,
    );
    expect(text).toContain("seed: many\n");
    expect(text).toContain("every: 30\n");
  });

  it("takes the config of the recipe that is chosen, by the type of each key", () => {
    const recipeConfig = {
      "image-classifier.epochs": "20",
      "image-classifier.lr": "1e-7",
      "image-classifier.augment": "true",
      "char-lm.epochs": "3",
    };
    expect(specText(draft({ values: { name: "a" }, recipeConfig }), "", kinds, keys)).toBe(
      "name: a\nrecipe: image-classifier\nconfig:\n  epochs: 20\n  lr: 1e-7\n  augment: true\n",
    );
  });

  it("takes a program of one's own as it was uploaded, with the config as it was written", () => {
    const own = draft({
      source: "folder",
      config: "lr: 0.1\n\nlayers: [1, 2]\n",
      values: { name: "own", entrypoint: "train.py:train", backend: "ray_train" },
    });
    expect(specText(own, "ab12", kinds, keys)).toBe(
      "name: own\nbackend: ray_train\nentrypoint: train.py:train\npackage: ab12\nconfig:\n  lr: 0.1\n\n  layers: [1, 2]\n",
    );
  });
});

describe("the first name", () => {
  const named = (...taken: string[]) => firstDraft(new Set(taken)).values.name;

  it("is one that no job has", () => {
    expect(named()).toBe("digits");
    expect(named("other")).toBe("digits");
    expect(named("digits")).toBe("digits-2");
    expect(named("digits", "digits-2", "digits-4")).toBe("digits-3");
  });

  it("gives way to the next one, until somebody types", () => {
    const second = withNextName(FIRST_DRAFT, new Set());
    expect(withNextName(second, new Set()).values.name).toBe("digits-3");
    expect(isSuggested(second)).toBe(true);
    expect(isSuggested({ ...second, values: { ...second.values, name: "mine" } })).toBe(false);
    expect(withGuesses(second, "My Model", []).values.name).toBe("my-model");
  });
});

describe("fieldOf", () => {
  it("finds the field that a finding is about", () => {
    const fields = ["name", "env", "workers.max"];
    expect(fieldOf("workers.max", fields)).toBe("workers.max");
    expect(fieldOf("env.A-B", fields)).toBe("env");
    expect(fieldOf("names", fields)).toBeNull();
    expect(fieldOf("limits.stop_grace", fields)).toBeNull();
  });
});

describe("withGuesses", () => {
  const values = (typed: Record<string, string>, title: string, files: string[]) =>
    withGuesses(draft({ values: { ...FIRST_DRAFT.values, ...typed } }), title, files).values;

  it("follows another folder, as nobody typed what the first one suggested", () => {
    const first = withGuesses(FIRST_DRAFT, "One", []);
    expect(withGuesses(first, "Two", []).values.name).toBe("two");
    const typed = { ...first, values: { ...first.values, name: "mine" } };
    expect(withGuesses(typed, "Two", []).values.name).toBe("mine");
  });

  it("names the job after the folder, and runs its train.py", () => {
    expect(values({}, "My Model", ["net.py", "train.py"])).toMatchObject({
      name: "my-model",
      entrypoint: "train.py:train",
    });
    expect(values({ name: "" }, "--..--", [])).toMatchObject({ name: "" });
    expect(values({}, "x".repeat(80), []).name).toHaveLength(63);
    expect(values({}, `${"x".repeat(62)}-x`, []).name).toBe("x".repeat(62));
  });

  it("leaves what was typed", () => {
    expect(values({ name: "mine" }, "My Model", ["train.py"])).toMatchObject({
      name: "mine",
      entrypoint: "train.py:train",
    });
    expect(values({ entrypoint: "net.py:fit" }, "My Model", ["train.py"])).toMatchObject({
      name: "my-model",
      entrypoint: "net.py:fit",
    });
  });
});
