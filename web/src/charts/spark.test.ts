import { describe, expect, it } from "vitest";
import { type Point, pathOf, withPoint } from "./spark";

describe("withPoint", () => {
  it("keeps few points of a long run, its first and its newest among them", () => {
    let course: readonly Point[] = [];
    for (let step = 1; step <= 100_000; step += 1) course = withPoint(course, step, 1 / step);
    expect(course.length).toBeGreaterThan(20);
    expect(course.length).toBeLessThanOrEqual(64);
    expect(course[0]).toEqual([1, 1]);
    expect(course.at(-1)).toEqual([100_000, 1e-5]);
    const steps = course.map((point) => point[0]);
    expect(steps).toEqual([...steps].sort((a, b) => a - b));
  });

  it("forgets what is trained again, and takes the same step twice", () => {
    const course = [1, 10, 20, 30].map((step): Point => [step, step]);
    expect(withPoint(course, 15, 5)).toEqual([
      [1, 1],
      [10, 10],
      [15, 5],
    ]);
    expect(withPoint([[1, 1]], 1, 2)).toEqual([[1, 2]]);
  });
});

describe("pathOf", () => {
  it("runs from corner to corner, the greatest value on top", () => {
    const falling: Point[] = [
      [0, 2],
      [50, 1],
      [100, 0],
    ];
    expect(pathOf(falling, 60, 20)).toBe("M0 0L30 10L60 20");
  });

  it("is level where nothing changes, and nothing where there is one point", () => {
    expect(
      pathOf(
        [
          [1, 3],
          [2, 3],
        ],
        60,
        20,
      ),
    ).toBe("M0 10L60 10");
    expect(pathOf([[1, 3]], 60, 20)).toBe("");
    expect(pathOf([], 60, 20)).toBe("");
  });
});
