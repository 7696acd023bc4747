import { describe, expect, it } from "vitest";
import { decideChart } from "./plan";

const data = {};
const inputs = { signature: "a", data, width: 100, height: 50 };

describe("decideChart", () => {
  it.each([
    ["nothing was drawn yet", null, inputs, ["create"]],
    ["the same", inputs, { ...inputs }, []],
    ["new data", inputs, { ...inputs, data: {} }, ["data"]],
    ["another width", inputs, { ...inputs, width: 90 }, ["resize"]],
    ["both", inputs, { ...inputs, height: 60, data: {} }, ["resize", "data"]],
    ["other colours", inputs, { ...inputs, signature: "b", data: {}, width: 1 }, ["create"]],
  ] as const)("%s", (_, before, after, steps) => {
    expect(decideChart(before, after)).toEqual(steps);
  });
});
