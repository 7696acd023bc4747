import { describe, expect, it } from "vitest";
import { resolvedSentence } from "./resolved";

describe("resolvedSentence", () => {
  const spec = {
    backend: "rubato",
    workers: { initial: 2, min: 1, max: 8 },
    batch: { global_size: 256, num_microbatches: 8 },
  };

  it("says what a spec comes to", () => {
    const text = resolvedSentence(spec);
    expect(text).toBe("The spec is valid: 2 workers (1 to 8), 256 samples a step in 8 microbatches.");
  });

  it("says nothing of a batch that the program cuts by itself, nor of bounds where there are none", () => {
    const other = { ...spec, backend: "ray_train", workers: { initial: 1, min: 1, max: 1 } };
    expect(resolvedSentence(other)).toBe("The spec is valid: 1 worker, a function of Ray Train.");
  });
});
