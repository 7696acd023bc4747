/** Server-sent events, parsed by hand: EventSource hides status codes and cannot start at a given id. */

export interface SseMessage {
  event: string;
  data: string;
}

/**
 * An incremental parser: feed it text as it arrives, in any cut, and get the messages that are complete.
 * Follows the HTML standard's event stream format, without `retry`.
 */
export class SseParser {
  /** Where to go on after a cut: the last id of all, also of one without data, which is no message. */
  lastId: string | null = null;
  private rest = "";
  private data: string[] = [];
  private event = "";
  private id: string | null = null;

  push(text: string): SseMessage[] {
    const messages: SseMessage[] = [];
    // A CR at the very end may be half of a CRLF: it waits for the next piece.
    const buffer = this.rest + text;
    const lines = buffer.split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? "";
    for (const line of lines) {
      const message = this.line(line);
      if (message) messages.push(message);
    }
    return messages;
  }

  private line(line: string): SseMessage | null {
    if (line === "") return this.dispatch();
    if (line.startsWith(":")) return null;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
    else if (field === "id" && !value.includes("\0")) this.id = value;
    return null;
  }

  private dispatch(): SseMessage | null {
    const message = { event: this.event || "message", data: this.data.join("\n") };
    const hasData = this.data.length > 0;
    if (this.id) this.lastId = this.id;
    this.data = [];
    this.event = "";
    this.id = null;
    return hasData ? message : null;
  }
}
