import { describe, expect, it } from "vitest";
import { parseAnsi, plainText } from "./ansi";

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

  it("is searched for what the service finds", () => {
    for (const sequence of [
      "\u001b]0;title\u0007",
      "\u001bPq\u001b\\",
      "\u009b2J",
      "\u009d0;t\u009c",
      "\u001b(0",
      "\r",
      "\u0085",
    ])
      expect(plainText(`one${sequence}\ttwo`)).toBe("one\ttwo");
    expect(plainText("one\u001b]0;two")).toBe("one0;two");
  });

  it("keeps markup as text", () => {
    expect(plain("<b>&amp;</b>")).toBe("<b>&amp;</b>");
  });
});
