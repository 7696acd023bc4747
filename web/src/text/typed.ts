/** Values as people type them, and where they go. Pure. */

export type Tree = Record<string, unknown>;

export function isNumber(text: string): boolean {
  return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) && Number.isFinite(Number(text));
}

/** Exactly, also beyond 2**53: a seed may be as large as 2**63. */
export function toNumber(text: string): number | bigint {
  return /^-?\d+$/.test(text) && !Number.isSafeInteger(Number(text)) ? BigInt(text) : Number(text);
}

/** Set a field by its path, such as `workers.max`; throws where the path leads through what has no fields. */
export function put(tree: Tree, path: string, value: unknown): void {
  const names = path.split(".");
  const last = names.pop() ?? "";
  let here = tree;
  for (const name of names) {
    if (!Object.hasOwn(here, name)) set(here, name, {});
    const below = here[name];
    if (typeof below !== "object" || below === null || Array.isArray(below))
      throw new Error(`${path}: ${name} is set to a value, which has no fields`);
    here = below as Tree;
  }
  set(here, last, value);
}

/** As a field of its own, whatever the name: `__proto__` is one like any other. */
function set(tree: Tree, name: string, value: unknown): void {
  Object.defineProperty(tree, name, { value, enumerable: true, writable: true, configurable: true });
}
