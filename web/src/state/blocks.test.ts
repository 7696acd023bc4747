import { expect, it } from "vitest";
import { blocksFromEnd } from "./blocks";

const upTo = (count: number) => Array.from({ length: count }, (_, place) => place);

it("keeps all rows, in order, in full blocks behind the first", () => {
  for (let count = 0; count <= 21; count++) {
    const blocks = blocksFromEnd(upTo(count), 5);
    expect(blocks.flatMap((block) => block.items)).toEqual(upTo(count));
    expect(blocks).toHaveLength(Math.ceil(count / 5));
    expect(blocks.slice(1).every((block) => block.items.length === 5)).toBe(true);
    expect(blocks.every((block) => upTo(count)[block.begin] === block.items[0])).toBe(true);
  }
});

it("moves no row when one is put before them", () => {
  const before = blocksFromEnd(upTo(7), 5);
  const after = blocksFromEnd([-1, ...upTo(7)], 5);
  expect(after[0]?.items).toEqual([-1, ...(before[0]?.items ?? [])]);
  expect(after.slice(1).map((block) => block.items)).toEqual(before.slice(1).map((block) => block.items));
});
