import { describe, expect, it } from "vitest";
import { toYaml } from "./yaml";

describe("toYaml", () => {
  it("writes a spec as people would", () => {
    const spec = {
      name: "digits",
      workers: { initial: 2, autoscale: "off" },
      labels: {},
      secrets: [],
      env: { OMP_NUM_THREADS: "1", EMPTY: "" },
      note: "a: b",
      run: "train # fast",
      topic: "c# 1#2",
      restart: { codes: [1, 2], rules: [{ on: "x", max: null }] },
      seed: 0,
    };
    expect(toYaml(spec)).toBe(
      [
        "name: digits",
        "workers:",
        "  initial: 2",
        '  autoscale: "off"',
        "labels: {}",
        "secrets: []",
        "env:",
        '  OMP_NUM_THREADS: "1"',
        '  EMPTY: ""',
        'note: "a: b"',
        'run: "train # fast"',
        "topic: c# 1#2",
        "restart:",
        "  codes:",
        "    - 1",
        "    - 2",
        "  rules:",
        '    - "on": x',
        "      max: null",
        "seed: 0",
      ].join("\n"),
    );
  });
});
