/** Changes of a spec as lines, such as `config.lr=0.1`: what `--set` of the command line takes. Pure. */

import { isNumber, put, type Tree, toNumber } from "./typed";

/**
 * The merge patch that they come to. A value is a number or JSON where it can be read so, else a text; with none the
 * field is taken away.
 */
export function parseAssignments(text: string): Tree {
  const patch: Tree = {};
  for (const line of text.split("\n").map((one) => one.trim())) {
    if (line === "") continue;
    const cut = line.indexOf("=");
    const path = line.slice(0, Math.max(0, cut)).trim();
    if (path.split(".").includes("")) throw new Error(`“${line}” is not of the form config.lr=0.1`);
    put(patch, path, read(line.slice(cut + 1).trim()));
  }
  return patch;
}

function read(text: string): unknown {
  if (text === "") return null;
  if (isNumber(text)) return Number(toNumber(text));
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
