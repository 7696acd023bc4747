/** A working folder as the zip that `rubato submit` makes of it, packed in the browser. */

import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { Zip, ZipDeflate } from "fflate";
import {
  DEFAULT_IGNORES,
  IGNORE_FILE,
  isIgnored,
  outsideCheckpoints,
  parseIgnoreLines,
} from "../text/ignore";

/** What the service takes. */
export const LIMITS = { files: 10_000, unpackedBytes: 500e6, packedBytes: 50e6 };
const ADVICE = `name in ${IGNORE_FILE} what the training does not need`;
const CHUNK_BYTES = 1 << 20;
/** A regular file that its owner may write, as Unix says it. */
const MODE = (0o100644 << 16) >>> 0;
const UNIX = 3;

export interface FolderFile {
  /** Below the folder, with slashes. */
  name: string;
  content: Blob;
}

export interface Packed {
  sha256: string;
  zip: Blob;
  /** Names of what is in it, sorted. */
  names: string[];
  unpackedBytes: number;
}

/** The files of a folder that are to be packed, sorted by name. */
export async function chooseFiles(files: readonly FolderFile[]): Promise<FolderFile[]> {
  const own = await files.find((file) => file.name === IGNORE_FILE)?.content.text();
  const rules = parseIgnoreLines([...DEFAULT_IGNORES, ...(own ?? "").split("\n")]);
  const wanted = new Set(outsideCheckpoints(files.map((file) => file.name)));
  const kept = files.filter((file) => wanted.has(file.name) && !isIgnored(file.name, rules));
  if (kept.length === 0)
    throw new Error("The folder holds no file to pack: it is empty, or everything is ignored.");
  if (kept.length > LIMITS.files) {
    throw new Error(
      `The folder holds ${kept.length} files, more than the ${LIMITS.files} allowed; ${ADVICE}.`,
    );
  }
  const size = kept.reduce((sum, file) => sum + file.content.size, 0);
  if (size > LIMITS.unpackedBytes) {
    throw new Error(
      `The folder holds ${megabytes(size)}, more than the ${megabytes(LIMITS.unpackedBytes)} allowed; ${ADVICE}.`,
    );
  }
  return kept.sort((one, other) => (one.name < other.name ? -1 : 1));
}

/**
 * Pack them. The same files always give the same bytes. The page stays alive meanwhile, and `onFile` hears how many
 * files are done.
 */
export async function pack(
  files: readonly FolderFile[],
  onFile: (done: number) => void,
  signal: AbortSignal,
  limits = LIMITS,
): Promise<Packed> {
  const hash = sha256.create();
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  let packedBytes = 0;
  let failure: Error | null = null;
  const zip = new Zip((error, chunk) => {
    failure ??= error;
    hash.update(chunk);
    packedBytes += chunk.length;
    chunks.push(chunk as Uint8Array<ArrayBuffer>);
  });
  let unpackedBytes = 0;
  for (const [index, { name, content }] of files.entries()) {
    const entry = Object.assign(new ZipDeflate(name, { level: 6 }), {
      mtime: new Date(1980, 0, 1),
      os: UNIX,
      attrs: MODE,
    });
    zip.add(entry);
    let start = 0;
    do {
      const end = Math.min(content.size, start + CHUNK_BYTES);
      entry.push(new Uint8Array(await content.slice(start, end).arrayBuffer()), end === content.size);
      start = end;
      signal.throwIfAborted();
      if (failure) throw failure;
      if (packedBytes > limits.packedBytes) {
        throw new Error(
          `The folder packs to more than the ${megabytes(limits.packedBytes)} allowed; ${ADVICE}.`,
        );
      }
    } while (start < content.size);
    unpackedBytes += content.size;
    onFile(index + 1);
  }
  zip.end();
  const names = files.map((file) => file.name);
  return { sha256: bytesToHex(hash.digest()), zip: new Blob(chunks), names, unpackedBytes };
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1).replace(".0", "")} MB`;
}
