import { describe, expect, it } from "vitest";
import { makeLine } from "../testing";
import {
  appendLines,
  compareIds,
  filterLines,
  MAX_LINES,
  NO_LOGS,
  placeOf,
  prependLines,
  ranksOf,
} from "./logs";

describe("compareIds", () => {
  it("orders by segment, then offset, as numbers", () => {
    const ids = ["10:0", "2:100", "2:9", "1:5000"];
    expect([...ids].sort(compareIds)).toEqual(["1:5000", "2:9", "2:100", "10:0"]);
    expect(compareIds("3:4", "3:4")).toBe(0);
  });
});

describe("appendLines", () => {
  it("drops what a reconnect sends again", () => {
    const state = appendLines(NO_LOGS, [makeLine("1:0"), makeLine("1:96")]);
    const next = appendLines(state, [makeLine("1:96"), makeLine("2:0")]);
    expect(next.lines.map((line) => line.id)).toEqual(["1:0", "1:96", "2:0"]);
    expect(appendLines(next, [makeLine("1:0"), makeLine("2:0")])).toBe(next);
  });

  it("holds a bounded number and says how many it dropped", () => {
    const lines = Array.from({ length: MAX_LINES + 7 }, (_, index) => makeLine(`1:${index}`));
    const state = appendLines(NO_LOGS, lines);
    expect(state.lines).toHaveLength(MAX_LINES);
    expect(state.dropped).toBe(7);
    expect(state.lines.at(-1)?.id).toBe(`1:${MAX_LINES + 6}`);
  });
});

describe("prependLines", () => {
  it("puts only what is earlier in front", () => {
    const state = appendLines(NO_LOGS, [makeLine("2:0"), makeLine("2:9")]);
    const whole = prependLines(state, [makeLine("1:0"), makeLine("1:96"), makeLine("2:0"), makeLine("2:9")]);
    expect(whole.lines.map((line) => line.id)).toEqual(["1:0", "1:96", "2:0", "2:9"]);
    expect(prependLines(whole, [makeLine("1:0")])).toBe(whole);
  });
});

describe("placeOf", () => {
  const lines = [makeLine("1:0"), makeLine("1:96"), makeLine("10:3")];
  it.each([
    ["1:0", 0],
    ["1:96", 1],
    ["1:97", 2],
    ["2:0", 2],
    ["10:3", 2],
    ["11:0", 3],
  ])("%s is at %i", (id, place) => {
    expect(placeOf(lines, id)).toBe(place);
  });
});

describe("filterLines", () => {
  const lines = [makeLine("1:0", "Epoch 1", 0), makeLine("1:1", "epoch 2", 1), makeLine("1:2", "left", null)];
  it.each([
    [[], "", 3],
    [[1], "", 1],
    [[0, 1], "EPOCH", 2],
    [[], "left", 1],
    [[0], "left", 0],
  ] as const)("ranks %j and text %j leave %i", (ranks, text, count) => {
    expect(filterLines(lines, { ranks: new Set(ranks), text })).toHaveLength(count);
  });

  it("lists the ranks that spoke", () => {
    expect(ranksOf(lines)).toEqual([0, 1]);
  });
});
