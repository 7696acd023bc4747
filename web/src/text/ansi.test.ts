import { describe, expect, it } from "vitest";
import { parseAnsi } from "./ansi";

const plain = (line: string) =>
  parseAnsi(line)
    .map((run) => run.text)
    .join("");

describe("parseAnsi", () => {
  it("turns colour and weight into classes", () => {
    expect(parseAnsi("a\u001b[1;31mb\u001b[0mc\u001b[92md\u001b[39me")).toEqual([
      { text: "a", className: "" },
      { text: "b", className: "ansi-red ansi-bold" },
      { text: "c", className: "" },
      { text: "d", className: "ansi-green" },
      { text: "e", className: "" },
    ]);
  });

  it.each([
    ["cursor movement", "\u001b[2K\u001b[1Ahello", "hello"],
    ["256 and true colours", "\u001b[38;5;208mx\u001b[48;2;1;2;3my\u001b[m", "xy"],
    ["hyperlinks", "\u001b]8;;http://a\u001b\\text\u001b]8;;\u0007", "text"],
    ["a redrawn progress bar", " 10%\r 50%\r100%", "100%"],
    ["a Windows line end", "done\r", "done"],
    ["other control characters, but not tabs", "a\u0007\tb", "a\tb"],
    ["a cut escape", "x\u001b[", "x"],
  ])("drops %s", (_, line, text) => {
    expect(plain(line)).toBe(text);
  });

  it("keeps markup as text", () => {
    expect(plain("<b>&amp;</b>")).toBe("<b>&amp;</b>");
  });
});
