import { expect, test } from "vitest";
import { makeLine } from "../testing";
import { placeAt, startsOf } from "./logrows";

const lines = (...texts: string[]) => texts.map((line, id) => ({ ...makeLine(`${id}`), line }));

test("lines take the rows that they need, without their colours", () => {
  const some = lines(
    "",
    "0123456789",
    "0123456789a",
    "\u001b[31m0123456789\u001b[0m",
    "\tab",
    "漢字漢字漢字",
  );
  expect(startsOf(some, 10)).toEqual([0, 1, 2, 4, 5, 6, 8]);
  expect(startsOf(some, Infinity)).toEqual([0, 1, 2, 3, 4, 5, 6]);
});

test("a row belongs to the line that begins before it", () => {
  const starts = startsOf(lines("a", "0123456789a", "b"), 5);
  expect(starts).toEqual([0, 1, 4, 5]);
  expect([0, 1, 2, 3, 4, 5, 99].map((row) => placeAt(starts, row))).toEqual([0, 1, 1, 1, 2, 2, 2]);
  expect(placeAt(startsOf([], 5), 3)).toBe(0);
});
