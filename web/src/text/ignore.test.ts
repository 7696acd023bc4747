import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { DEFAULT_IGNORES, isIgnored, outsideCheckpoints, parseIgnoreLines } from "./ignore";

interface Cases {
  defaults: string[];
  cases: { lines: string[]; ignored: string[]; kept: string[] }[];
}

const path = new URL("../../../tests/unit/ignore_cases.json", import.meta.url);
const { defaults, cases }: Cases = JSON.parse(readFileSync(path, "utf-8"));

describe("what is packed on the page is what the command line packs", () => {
  it("has the same built-in list", () => {
    expect(DEFAULT_IGNORES).toEqual(defaults);
  });

  it.each(cases)("$lines", ({ lines, ignored, kept }) => {
    const rules = parseIgnoreLines(lines);
    expect(ignored.filter((name) => !isIgnored(name, rules))).toEqual([]);
    expect(kept.filter((name) => isIgnored(name, rules))).toEqual([]);
  });

  it("leaves out checkpoints of earlier runs, and nothing that only looks like one", () => {
    const kept = ["train.py", "2026-11/data.csv", "1-2x/manifest.json", "manifest.json"];
    const left = ["kept/1-30/manifest.json", "kept/1-30/stripe-1.safetensors", "2-60/manifest.json"];
    expect(outsideCheckpoints([...left, ...kept])).toEqual(kept);
  });

  it("looks into no folder that is ignored", () => {
    const rules = parseIgnoreLines([...DEFAULT_IGNORES, "!.git/hooks"]);
    expect(isIgnored(".git/hooks/x", rules)).toBe(true);
    expect(isIgnored("src/__pycache__/a.py", rules)).toBe(true);
    expect(isIgnored("src/a.py", rules)).toBe(false);
  });
});
