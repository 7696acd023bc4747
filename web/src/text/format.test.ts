import { describe, expect, it } from "vitest";
import * as format from "./format";

const THIN = "\u202f";
const unbroken = (text: string) => text.replaceAll(" ", "\u00a0");

describe("format", () => {
  it.each([
    [0, "0"],
    [0.31271, "0.3127"],
    [0.5, "0.5"],
    [2, "2"],
    [-1.25, "−1.25"],
    [100, "100"],
    [350.04, "350"],
    [350.16, "350.2"],
    [12_345.6, `12${THIN}346`],
    [3.1e-7, "3.10e−7"],
    [Number.NaN, "NaN"],
    [Number.POSITIVE_INFINITY, "∞"],
    [null, "–"],
    [undefined, "–"],
  ])("value %s is %s", (value, text) => {
    expect(format.formatValue(value)).toBe(text);
  });

  it.each([
    [0, "0"],
    [0.0025, "2.5 ms"],
    [0.1, "100 ms"],
    [1.5, "1.5 s"],
    [120, "120 s"],
  ])("tick %s is %s", (seconds, text) => {
    expect(format.formatTick(seconds)).toBe(unbroken(text));
  });

  it.each([
    [0, "0 ms"],
    [0.041, "41 ms"],
    [0.9999, "1.0 s"],
    [1.25, "1.3 s"],
    [59.7, "1 min"],
    [65, "1 min 05 s"],
    [3600, "1 h"],
    [7800, "2 h 10 min"],
    [90_000, "1 d 1 h"],
    [Number.POSITIVE_INFINITY, "–"],
  ])("duration %s is %s", (seconds, text) => {
    expect(format.formatDuration(seconds)).toBe(unbroken(text));
  });

  it.each([
    [0.02, "20 ms"],
    [12.4, "12 s"],
    [59.8, "1 min"],
    [3599, "1 h"],
    [100_000, "1 d"],
  ])("coarse %s is %s", (seconds, text) => {
    expect(format.formatCoarse(seconds)).toBe(unbroken(text));
  });

  it.each([
    [7, "0:07"],
    [760, "12:40"],
    [3729, "1:02:09"],
  ])("elapsed %s is %s", (seconds, text) => {
    expect(format.formatElapsed(seconds)).toBe(text);
  });

  it("says how long ago, and the day where it is not today", () => {
    const then = new Date(2026, 0, 1, 12, 0, 5);
    expect(format.formatAgo(then.toISOString(), then.getTime() + 400)).toBe(unbroken("just now"));
    expect(format.formatAgo(then.toISOString(), then.getTime() + 12_000)).toBe(unbroken("12 s ago"));
    expect(format.formatTime(then.toISOString(), then.getTime())).toBe("12:00:05");
    expect(format.formatTime(then.toISOString(), then.getTime() + 86_400_000)).toBe("2026-01-01 12:00:05");
    expect(format.formatTime("soon", 0)).toBe("soon");
  });

  it("writes sizes, plurals and codes", () => {
    expect([512, 2048, 98_300, 1_003_520, 68_719_476_736].map(format.formatBytes)).toEqual(
      ["512 B", "2.0 kB", "98 kB", "1.0 MB", "68.7 GB"].map(unbroken),
    );
    expect([1, 0.99999, 0.5, 0].map(format.formatShare)).toEqual(
      ["100", "99.9", "50.0", "0.0"].map((figure) => `${figure}${THIN}%`),
    );
    expect(format.plural(1, "worker")).toBe("1 worker");
    expect(format.plural(1234, "line")).toBe(`1${THIN}234 lines`);
    expect(format.words("out_of_memory")).toBe("out of memory");
    expect(["paused by admin", "w2 left", "job-a ended", ""].map(format.sentence)).toEqual([
      "Paused by admin",
      "w2 left",
      "job-a ended",
      "",
    ]);
  });
});
