import { describe, expect, it } from "vitest";
import type { WorkerLane } from "../state/lanes";
import { boxes, laneBoxes, laneHeight, momentsNear, spanAt, ticksOf, timeAt, zoomed } from "./strip";

const strip = { from: 1000, to: 101_000, width: 500 };

describe("boxes", () => {
  it("draws spans to scale, and the shortest so that they are seen", () => {
    expect(boxes(strip, [{ from: 1000, to: 21_000 }], 2, 8)).toBe("M0 2h100v8h-100z");
    expect(boxes(strip, [{ from: 51_000, to: 51_040 }], 0, 8)).toBe("M250 0h1.5v8h-1.5z");
  });

  it("draws ten thousand pauses of a long job as what can be told apart", () => {
    const many = Array.from({ length: 10_000 }, (_, index) => ({
      from: 1000 + index * 10,
      to: 1001 + index * 10,
    }));
    expect(boxes(strip, many, 0, 1).split("M").length).toBeLessThan(2100);
  });

  it("cuts what began before the left edge", () => {
    expect(boxes(strip, [{ from: 0, to: 11_000 }], 0, 1)).toBe("M0 0h50v1h-50z");
  });
});

describe("laneBoxes", () => {
  it("puts each worker into a row of its own", () => {
    const life = (state: "ready" | "training", from: number, to: number) =>
      ({ state, from, to, rank: null, generations: null }) as const;
    const lane = (...spans: ReturnType<typeof life>[]): WorkerLane => ({
      workerId: "w",
      node: null,
      spans,
      end: null,
      endText: "",
    });
    const lanes = [
      lane(life("ready", 1000, 11_000), life("training", 11_000, 21_000)),
      lane(life("ready", 1000, 1000)),
    ];
    const row = laneHeight(2) - 2;
    expect(laneBoxes(strip, lanes, "training")).toBe(`M50 1h50v${row}h-50z`);
    expect(laneBoxes(strip, lanes, "ready")).toBe(`M0 1h50v${row}h-50z`);
  });

  it.each([
    [1, 15],
    [64, 9],
    [256, 5],
  ])("%i lanes are %i pixels high", (count, height) => {
    expect(laneHeight(count)).toBe(height);
  });
});

describe("what lies under the pointer", () => {
  it("is the span at that time, and the moments near it", () => {
    const spans = [
      { from: 1000, to: 50_000 },
      { from: 50_000, to: 90_000 },
    ];
    expect(spanAt(spans, timeAt(strip, 245))).toBe(spans[1]);
    expect(spanAt(spans, 500)).toBeNull();
    const moments = [{ at: 49_000 }, { at: 50_000 }, { at: 60_000 }];
    expect(momentsNear(strip, moments, 244)).toEqual([{ at: 50_000 }, { at: 49_000 }]);
  });
});

describe("the axis", () => {
  it("has round labels with room between them", () => {
    expect(ticksOf(strip, strip.from)).toEqual([0, 30, 60, 90]);
    expect(ticksOf({ from: 0, to: 86_400_000, width: 400 }, 0)).toEqual([0, 21_600, 43_200, 64_800, 86_400]);
  });

  it("counts from the beginning of the job, also where only its end is in sight", () => {
    const [begun, hours] = [50_000, 3 * 3_600_000 + 12_000];
    const end = begun + hours;
    expect(ticksOf({ from: end - 300_000, to: end, width: 500 }, begun)).toEqual([
      10_560, 10_620, 10_680, 10_740, 10_800,
    ]);
    expect(ticksOf({ from: begun, to: end, width: 400 }, begun)).toEqual([0, 3600, 7200, 10_800]);
  });

  it("shows all, or the last of it", () => {
    const spans = [{ phase: "training", from: 0, to: 100_000 }] as const;
    expect(zoomed(spans, null)).toEqual([0, 100_000]);
    expect(zoomed(spans, 60)).toEqual([40_000, 100_000]);
    expect(zoomed(spans, 3600)).toEqual([0, 100_000]);
  });
});
