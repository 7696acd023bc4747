import { createHash } from "node:crypto";
import { unzipSync } from "fflate";
import { describe, expect, it } from "vitest";
import { chooseFiles, type FolderFile, LIMITS, pack } from "./pack";

const file = (name: string, content: string | Uint8Array<ArrayBuffer> = ""): FolderFile => ({
  name,
  content: new Blob([content]),
});
const { signal } = new AbortController();

describe("chooseFiles", () => {
  it("leaves out what is ignored, and sorts", async () => {
    const files = [file("z.py"), file(".git/HEAD"), file("a.csv"), file(".rubatoignore", "*.csv\n")];
    expect((await chooseFiles(files)).map((one) => one.name)).toEqual([".rubatoignore", "z.py"]);
  });

  it("says what to do where nothing is left, or too much", async () => {
    await expect(chooseFiles([file(".env")])).rejects.toThrow("no file to pack");
    const many = Array.from({ length: 10_001 }, (_, index) => file(`${index}.txt`));
    await expect(chooseFiles(many)).rejects.toThrow(/10001 files.*\.rubatoignore/);
    const large = { size: 600e6 } as Blob;
    await expect(chooseFiles([{ name: "data.bin", content: large }])).rejects.toThrow(
      /600 MB, more than the 500 MB.*\.rubatoignore/,
    );
  });
});

describe("pack", () => {
  const large = new Uint8Array((3 << 19) + 1).map((_, index) => index % 251);
  const files = [file("data/large.bin", large), file("empty.py"), file("träin.py", "print('ö')\n")];

  it("gives back what was put in, and its hash", async () => {
    const seen: number[] = [];
    const packed = await pack(files, (done) => seen.push(done), signal);
    const bytes = new Uint8Array(await packed.zip.arrayBuffer());
    expect(packed.sha256).toBe(createHash("sha256").update(bytes).digest("hex"));
    const inside = unzipSync(bytes);
    expect(Object.keys(inside)).toEqual(packed.names);
    expect(Buffer.compare(inside["data/large.bin"] ?? Buffer.of(), large)).toBe(0);
    expect(new TextDecoder().decode(inside["träin.py"])).toBe("print('ö')\n");
    expect(inside["empty.py"]).toHaveLength(0);
    expect(packed.unpackedBytes).toBe(large.length + 12);
    expect(seen).toEqual([1, 2, 3]);
  });

  it("gives the same bytes again, so that they are uploaded once", async () => {
    const [one, other] = [await pack(files, () => {}, signal), await pack(files, () => {}, signal)];
    expect(one.sha256).toBe(other.sha256);
  });

  it("refuses more than the service takes", async () => {
    const small = { ...LIMITS, packedBytes: 1000 };
    await expect(pack(files, () => {}, signal, small)).rejects.toThrow(/packs to more than .*\.rubatoignore/);
  });

  it("stops where nobody waits for it any more", async () => {
    const leaving = new AbortController();
    leaving.abort();
    await expect(pack(files, () => {}, leaving.signal)).rejects.toThrow();
  });
});
