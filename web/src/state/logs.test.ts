import { describe, expect, it } from "vitest";
import { makeLine } from "../testing";
import type { Failure } from "../wire";
import {
  appendLines,
  compareIds,
  failingRanks,
  filterLines,
  findFailure,
  MAX_LINES,
  MOST_LINES,
  NO_LOGS,
  NO_WISH,
  parseRanks,
  partSearched,
  placeOf,
  prependLines,
  queryOf,
  ranksOf,
  ranksText,
  readWish,
  wishQuery,
} from "./logs";

const FAILURE: Failure = {
  failure_class: "user",
  reason: "user_code_error",
  message: "",
  worker_id: null,
  rank: null,
  node: null,
  exit_code: 1,
  signal: null,
  step: 3,
  microbatch: null,
  traceback: null,
  last_output: [],
};

describe("compareIds", () => {
  it("orders by segment, then offset, as numbers", () => {
    const ids = ["10:0", "2:100", "2:9", "1:5000"];
    expect([...ids].sort(compareIds)).toEqual(["1:5000", "2:9", "2:100", "10:0"]);
    expect(compareIds("3:4", "3:4")).toBe(0);
  });
});

describe("partSearched", () => {
  it.each([
    ["9:100", "9:900", 0],
    ["8:5", "9:1", 0.1],
    ["3:7", "9:1", 0.6],
    ["3:7", undefined, 0],
  ])("between %s and %s it is %d", (from, end, part) => {
    expect(partSearched(from, end)).toBeCloseTo(part);
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

describe("a log of a million lines", () => {
  it("is borne in pieces, forwards and backwards, and never held whole", () => {
    const line = makeLine("");
    const piece = (from: number, size: number) =>
      Array.from({ length: size }, (_, index) => ({ ...line, id: `0:${from + index}` }));
    let state = NO_LOGS;
    for (let from = 0; from < 1_000_000; from += 10_000) state = appendLines(state, piece(from, 10_000));
    expect([state.lines.length, state.dropped]).toEqual([MAX_LINES, 1_000_000 - MAX_LINES]);
    for (let back = 0; back < 30; back += 1)
      state = prependLines(state, piece(1_000_000 - MAX_LINES - (back + 1) * 10_000, 10_000));
    expect(state.lines).toHaveLength(MOST_LINES);
    state = appendLines(state, [makeLine("1:0")]);
    expect([state.lines.length, state.lines.at(-1)?.id]).toEqual([MOST_LINES, "1:0"]);
    expect(placeOf(state.lines, "0:900000")).toBe(900_000 - (1_000_001 - MOST_LINES));
  }, 30_000);
});

describe("parseRanks", () => {
  it.each([
    ["", []],
    ["0, 3", [0, 3]],
    ["8-10 2", [8, 9, 10, 2]],
    ["x", null],
    ["-1", null],
  ])("reads %j", (text, ranks) => {
    expect(parseRanks(text)).toEqual(ranks && new Set(ranks));
  });
});

describe("findFailure", () => {
  const failure = {
    ...FAILURE,
    worker_id: "w2",
    rank: 1,
    traceback: "Traceback\n  line 3\nValueError: no\n",
  };
  const of = (id: string, worker_id: string, line: string) => ({ ...makeLine(id, line, 1), worker_id });
  const lines = [
    of("1:1", "w2", "ValueError: no"),
    of("1:2", "w2", "retried"),
    of("1:3", "w2", "[rank 1] ValueError: no"),
    of("1:4", "w2", "bye"),
    of("1:5", "w3", "ValueError: no"),
  ];

  it("is the last line of the failing worker that says what it raised", () => {
    expect(findFailure(lines, failure)?.id).toBe("1:3");
  });

  it("is its last word where it was killed, and nothing where it never spoke", () => {
    expect(findFailure(lines, { ...failure, traceback: null })?.id).toBe("1:4");
    expect(findFailure(lines, { ...failure, worker_id: null })?.id).toBe("1:5");
    expect(findFailure(lines, { ...failure, worker_id: "w9" })).toBeNull();
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

  it("finds what is read, across a change of colour", () => {
    const coloured = [makeLine("1:0", "step \u001b[1m120\u001b[0m done")];
    expect(filterLines(coloured, { ranks: new Set(), text: "step 120 d" })).toHaveLength(1);
  });

  it("lists the ranks that spoke", () => {
    expect(ranksOf(lines)).toEqual([0, 1]);
  });
});

describe("ranksText", () => {
  it.each(["", "3", "0, 3, 8-10", "0-1, 63-64"])("is as one types it: %s", (text) => {
    expect(ranksText(parseRanks(text) ?? new Set())).toBe(text);
  });

  it("is in order", () => {
    expect(ranksText(new Set([9, 2, 8, 1, 5]))).toBe("1-2, 5, 8-9");
  });
});

describe("failingRanks", () => {
  it("is the rank, all where a worker failed that had none yet, and null where none failed", () => {
    expect(failingRanks({ ...FAILURE, rank: 3, worker_id: "w4" })).toEqual(new Set([3]));
    expect(failingRanks({ ...FAILURE, worker_id: "w4" })).toEqual(new Set());
    expect(failingRanks(FAILURE)).toBeNull();
    expect(failingRanks(null)).toBeNull();
  });
});

describe("the wish in the address", () => {
  it("is read as it was told, but for an age", () => {
    const wish = { ranks: new Set([10, 2]), text: "a & b?", since: "2026-01-31T12:00:00Z" };
    expect(queryOf(wish)).toBe("&rank=2%2C10&q=a%20%26%20b%3F&since=2026-01-31T12%3A00%3A00Z");
    expect(wishQuery(wish)).toBe("?rank=2%2C10&q=a%20%26%20b%3F");
    expect(readWish(wishQuery(wish))).toEqual({ ...wish, since: "" });
  });

  it("is none where nothing or nonsense is told", () => {
    expect(wishQuery(NO_WISH)).toBe("");
    expect(readWish("")).toBeNull();
    expect(readWish("?rank=x")).toBeNull();
  });
});
