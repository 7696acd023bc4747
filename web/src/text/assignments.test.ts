import { describe, expect, it } from "vitest";
import { parseAssignments } from "./assignments";

describe("parseAssignments", () => {
  it("reads values as people write them", () => {
    const text =
      'config.lr=1e-3\n\n config.layers = [64, 64] \nlimits.max_duration=2h\nlabels.a=x=y\nseed="7"\nname=run 2';
    expect(parseAssignments(text)).toEqual({
      config: { lr: 0.001, layers: [64, 64] },
      limits: { max_duration: "2h" },
      labels: { a: "x=y" },
      seed: "7",
      name: "run 2",
    });
  });

  it("takes a field away where nothing is given", () => {
    expect(parseAssignments("limits.queue_timeout=")).toEqual({ limits: { queue_timeout: null } });
  });

  it.each(["lr", "=1", "config.=1", "a..b=1"])("refuses %s", (line) => {
    expect(() => parseAssignments(`seed=1\n${line}`)).toThrow(`“${line}”`);
  });

  it("refuses fields of a value", () => {
    expect(() => parseAssignments("config.lr=1\nconfig.lr.warmup=2")).toThrow("lr is set to a value");
  });

  it("takes any name as a name", () => {
    const patch = parseAssignments("config.__proto__=1\nconstructor.a=2");
    expect(JSON.stringify(patch)).toBe('{"config":{"__proto__":1},"constructor":{"a":2}}');
  });
});
