import { describe, expect, it } from "vitest";
import { SseParser } from "./sse";

const TEXT = 'id: 7\nevent: event\ndata: {"a":1}\n\n: keep-alive\n\nevent: job\ndata: one\ndata: two\n\n';
const MESSAGES = [
  { event: "event", data: '{"a":1}' },
  { event: "job", data: "one\ntwo" },
];

describe("SseParser", () => {
  it("reads the same messages however the text is cut", () => {
    for (let cut = 0; cut <= TEXT.length; cut += 1) {
      const parser = new SseParser();
      expect([...parser.push(TEXT.slice(0, cut)), ...parser.push(TEXT.slice(cut))]).toEqual(MESSAGES);
      expect(parser.lastId).toBe("7");
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
    expect(parser.push("\n")).toEqual([{ event: "message", data: "half" }]);
  });

  it("knows the last id of all that is complete, also of what has no data", () => {
    const parser = new SseParser();
    expect(parser.lastId).toBeNull();
    expect(parser.push("id: 1\ndata: x\n\nid: 2\n\ndata: y\n\nid: 3\n")).toHaveLength(2);
    expect(parser.lastId).toBe("2");
  });

  it("takes one space after the colon away, not two, and drops messages without data", () => {
    expect(new SseParser().push("data:  x\n\nid: 3\n\ndata\n\n")).toEqual([
      { event: "message", data: " x" },
      { event: "message", data: "" },
    ]);
  });
});
