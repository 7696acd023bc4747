import { describe, expect, it } from "vitest";
import { specLines } from "./spec";
import { toYaml } from "./yaml";

const spec = {
  name: "digits",
  labels: {},
  config: { lr: 0.1, "a.b": [1, 2] },
  workers: { initial: 4, min: 1 },
  checkpoint: { keep_best: { metric: "loss", keep: 1 }, every: 30 },
};
const given = ["name", "config.lr", "config.a.b", "workers.initial", "checkpoint.keep_best"];

describe("specLines", () => {
  it("reads as the YAML of the whole", () => {
    const lines = specLines(spec, given);
    expect(lines.map((line) => line.text).join("\n")).toBe(toYaml(spec));
  });

  it("tells what was given, with all that holds it and all that it holds", () => {
    const told = specLines(spec, given).filter((line) => line.isGiven);
    expect(told.map((line) => line.text.trim())).toEqual([
      "name: digits",
      "config:",
      "lr: 0.1",
      "a.b:",
      "- 1",
      "- 2",
      "workers:",
      "initial: 4",
      "checkpoint:",
      "keep_best:",
      "metric: loss",
      "keep: 1",
    ]);
  });

  it("is all plain where the service does not say it", () => {
    expect(specLines(spec, []).some((line) => line.isGiven)).toBe(false);
  });
});
