import { describe, expect, it } from "vitest";
import { isPlain, placeAfter, tabAfter, zoomAfter } from "./keys";

const x = [0, 10, 20, 30, 30, 40, 50];

describe("placeAfter", () => {
  it.each([
    ["ArrowLeft", null, 30],
    ["ArrowLeft", 20, 10],
    ["ArrowLeft", 10, 10],
    ["ArrowRight", 20, 30],
    ["ArrowRight", 30, 40],
    ["ArrowRight", 33, 40],
    ["ArrowRight", 40, 40],
    ["ArrowRight", 5, 20],
    ["Home", 40, 10],
    ["End", null, 40],
    ["Enter", 20, null],
  ])("%s from %s leads to %s, within what is in sight", (key, place, next) => {
    expect(placeAfter(key, x, [5, 45], place)).toBe(next);
  });

  it("goes through many points in a hundred steps", () => {
    const many = Array.from({ length: 2000 }, (_, index) => index);
    expect(placeAfter("ArrowLeft", many, [0, 1999], 1999)).toBe(1979);
  });

  it("leads nowhere where there is nothing", () => {
    expect(placeAfter("ArrowLeft", [], [0, 1], null)).toBeNull();
    expect(placeAfter("End", x, [41, 49], null)).toBeNull();
  });
});

describe("zoomAfter", () => {
  const whole = [0, 50] as const;

  it.each([
    ["+", [0, 50], 20, [10, 35]],
    ["=", [0, 50], null, [25, 50]],
    ["-", [10, 34], 20, [0, 46]],
    ["_", [20, 30], 30, [15, 35]],
    ["-", [0, 50], null, [0, 50]],
    ["x", [0, 50], 20, null],
  ] as const)("%s in %j around %s shows %j", (key, range, place, part) => {
    expect(zoomAfter(key, x, range, whole, place)).toEqual(part);
  });

  it("shows no part in which there is no line", () => {
    expect(zoomAfter("+", x, [15, 31], whole, 20)).toBeNull();
    expect(zoomAfter("+", [], [0, 1], [0, 1], null)).toBeNull();
  });
});

describe("tabAfter", () => {
  it.each([
    ["ArrowLeft", 0, 6],
    ["ArrowLeft", 3, 2],
    ["ArrowRight", 6, 0],
    ["ArrowRight", 3, 4],
    ["Home", 3, 0],
    ["End", 3, 6],
    ["ArrowDown", 3, null],
  ])("%s from tab %i of 7 leads to %s", (key, index, next) => {
    expect(tabAfter(key, index, 7)).toBe(next);
  });
});

describe("isPlain", () => {
  it("leaves keys with a modifier to the browser", () => {
    const plain = { ctrlKey: false, metaKey: false, altKey: false };
    expect(isPlain(plain)).toBe(true);
    for (const key of ["ctrlKey", "metaKey", "altKey"])
      expect(isPlain({ ...plain, [key]: true })).toBe(false);
  });
});
