import { describe, expect, it } from "vitest";
import { SseParser } from "./sse";

const TEXT = 'id: 7\nevent: event\ndata: {"a":1}\n\n: keep-alive\n\nevent: job\ndata: one\ndata: two\n\n';
const MESSAGES = [
  { id: "7", event: "event", data: '{"a":1}' },
  { id: null, event: "job", data: "one\ntwo" },
];

describe("SseParser", () => {
  it("reads the same messages however the text is cut", () => {
    for (let cut = 0; cut <= TEXT.length; cut += 1) {
      const parser = new SseParser();
      expect([...parser.push(TEXT.slice(0, cut)), ...parser.push(TEXT.slice(cut))]).toEqual(MESSAGES);
    }
  });

  it("knows all three line endings, also when a CRLF is cut in two", () => {
    for (const ending of ["\r\n", "\r"]) {
      const text = TEXT.replaceAll("\n", ending);
      for (let cut = 0; cut <= text.length; cut += 1) {
        const parser = new SseParser();
        const messages = [
          ...parser.push(text.slice(0, cut)),
          ...parser.push(text.slice(cut)),
          ...parser.push(": x\n\n"),
        ];
        expect(messages).toEqual(MESSAGES);
      }
    }
  });

  it("keeps an unfinished message to itself", () => {
    const parser = new SseParser();
    expect(parser.push("id: 1\ndata: half\n")).toEqual([]);
    expect(parser.push("\n")).toEqual([{ id: "1", event: "message", data: "half" }]);
  });

  it("takes one space after the colon away, not two, and drops messages without data", () => {
    expect(new SseParser().push("data:  x\n\nid: 3\n\ndata\n\n")).toEqual([
      { id: null, event: "message", data: " x" },
      { id: null, event: "message", data: "" },
    ]);
  });
});
