export interface Block<Item> {
  /** The place of its first item in the list. */
  begin: number;
  items: Item[];
}

/**
 * A list cut into blocks of `size`, counted from its end: what is put before it makes the first block longer, and moves
 * no item to another one.
 */
export function blocksFromEnd<Item>(items: readonly Item[], size: number): Block<Item>[] {
  const blocks: Block<Item>[] = [];
  for (let end = items.length; end > 0; end -= size) {
    const begin = Math.max(0, end - size);
    blocks.unshift({ begin, items: items.slice(begin, end) });
  }
  return blocks;
}
