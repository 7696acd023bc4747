import { describe, expect, it } from "vitest";
import { makeJob } from "../testing";
import {
  comparePath,
  digestNote,
  metricsShown,
  NOTHING_COMPARED,
  readComparison,
  readingOf,
  specDifferences,
} from "./compare";

const search = (path: string) => path.slice(path.indexOf("?"));

describe("the address of a comparison", () => {
  it("tells jobs and metric, and comes back as it was", () => {
    const wanted = {
      jobs: ["job_1", "a b"],
      metrics: ["loss", "top 5, %"],
      axis: "time" as const,
      isSmooth: false,
      isLog: true,
    };
    expect(readComparison(search(comparePath(wanted)))).toEqual(wanted);
    expect(comparePath({ jobs: ["job_1", "job_2"], metrics: ["loss"] })).toBe(
      "/compare?jobs=job_1,job_2&metric=loss",
    );
    expect(comparePath({})).toBe("/compare");
  });

  it("reads what people write by hand: twice the same, too many, an axis that is none", () => {
    expect(readComparison("?jobs=a,%20b,a,&x=width&jobs=c,d,e").jobs).toEqual(["a", "b", "c", "d"]);
    expect(readComparison("?jobs=a&x=width").axis).toBe("step");
    expect(readComparison("")).toEqual(NOTHING_COMPARED);
  });
});

describe("metricsShown", () => {
  it("is what was chosen, be it there or not, and else the first there is", () => {
    expect(metricsShown(["accuracy"], ["loss"])).toEqual(["accuracy"]);
    expect(metricsShown([], ["loss", "accuracy"])).toEqual(["loss"]);
    expect(metricsShown([], [])).toEqual([]);
  });
});

describe("specDifferences", () => {
  const spec = (lr: number, more: object = {}) => ({
    name: `lr-${lr}`,
    config: { lr, layers: [1, 2], ...more },
    seed: 0,
  });

  it("tells each place that is not the same in all, and what is missing", () => {
    expect(specDifferences([spec(0.1), spec(0.01, { warmup: 5 }), spec(0.1)])).toEqual([
      { path: "config.lr", values: [0.1, 0.01, 0.1] },
      { path: "config.warmup", values: [undefined, 5, undefined] },
    ]);
  });

  it("takes lists as a whole, and finds nothing in one job alone", () => {
    expect(specDifferences([spec(1), { ...spec(1), config: { lr: 1, layers: [1] } }])).toEqual([
      { path: "config.layers", values: [[1, 2], [1]] },
    ]);
    expect(specDifferences([spec(1)])).toEqual([]);
    expect(specDifferences([undefined, null])).toEqual([]);
  });
});

describe("readingOf", () => {
  const chart = {
    bucket_steps: 1,
    position: 3,
    series: {
      loss: {
        x: [1, 2, 3],
        y: [2, 0.5, 1],
        steps: [1, 2, 3],
        times: [1, 2, 3],
        means: [2, 0.5, 1],
        weights: [1, 1, 1],
      },
    },
  };

  it("is the job's own newest value, and the extremes of all", () => {
    const job = makeJob({ metrics: { loss: 0.25 } });
    expect(readingOf(job, chart, "loss")).toEqual({ newest: 0.25, least: 0.25, greatest: 2 });
  });

  it("is the last one measured where the newest step has none, and null where it was not finite", () => {
    expect(readingOf(makeJob(), chart, "loss").newest).toBe(1);
    expect(readingOf(makeJob({ metrics: { loss: null } }), chart, "loss").newest).toBeNull();
    expect(readingOf(makeJob(), null, "loss")).toEqual({ newest: null, least: null, greatest: null });
  });
});

it("digests are told equal or not where two are known", () => {
  expect(digestNote([null, "a"])).toBe("");
  expect(digestNote(["a", null, "a"])).toMatch(/^equal/);
  expect(digestNote(["a", "b"])).toBe("not equal");
  expect(digestNote(["a", "a", "b"])).toBe("not all equal");
});
