/** A spec as lines of YAML, each told apart: given, or a default. Pure. */

import { toYaml } from "./yaml";

export interface SpecLine {
  text: string;
  isGiven: boolean;
}

/** `given`: paths such as `workers.initial`; a path stands for all below it, and makes those above it given, too. */
export function specLines(spec: Record<string, unknown>, given: readonly string[]): SpecLine[] {
  return linesOf(spec, new Set(given), "", "");
}

function linesOf(
  part: Record<string, unknown>,
  given: ReadonlySet<string>,
  prefix: string,
  indent: string,
): SpecLine[] {
  return Object.entries(part).flatMap(([name, value]) => {
    const path = prefix + name;
    const isWhole = given.has(path);
    const isHolding = [...given].some((one) => one.startsWith(`${path}.`));
    if (isWhole || !isHolding || !isMapping(value))
      return toYaml({ [name]: value })
        .split("\n")
        .map((text) => ({ text: indent + text, isGiven: isWhole }));
    const head = toYaml({ [name]: {} }).replace(/ \{\}$/, "");
    return [{ text: indent + head, isGiven: true }, ...linesOf(value, given, `${path}.`, `${indent}  `)];
  });
}

function isMapping(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
