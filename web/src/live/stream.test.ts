import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { SseMessage } from "./sse";
import { decideDelay, lostSince, openStream, type Stream, type StreamState } from "./stream";

/** A service that answers each connection with a script and remembers what it was asked for. */
class FakeService {
  readonly asked: (string | null)[] = [];
  private readonly answers: (() => Response)[] = [];
  readonly open: ReadableStreamDefaultController<Uint8Array>[] = [];

  answerWith(...answers: (() => Response)[]): void {
    this.answers.push(...answers);
  }

  stream(text: string, end: "open" | "clean" | "cut"): () => Response {
    return () => {
      const body = new ReadableStream<Uint8Array>({
        start: (controller) => {
          if (text) controller.enqueue(new TextEncoder().encode(text));
          if (end === "clean") controller.close();
          else this.open.push(controller);
        },
        pull: (controller) => {
          // Not in start: an error there would discard what is queued.
          if (end === "cut") controller.error(new TypeError("network error"));
        },
      });
      return new Response(body, { status: 200 });
    };
  }

  readonly fetch = (_: unknown, init?: RequestInit): Promise<Response> => {
    this.asked.push(new Headers(init?.headers).get("Last-Event-ID"));
    const answer = this.answers.shift();
    if (!answer) return Promise.reject(new TypeError("connection refused"));
    const before = this.open.length;
    const response = answer();
    const [controller] = this.open.slice(before);
    init?.signal?.addEventListener("abort", () => controller?.error(init.signal?.reason));
    return Promise.resolve(response);
  };
}

const message = (id: number) => `id: ${id}\nevent: event\ndata: ${id}\n\n`;

describe("openStream", () => {
  let service: FakeService;
  let seen: string[];
  let states: StreamState[];
  let stream: Stream | null;

  beforeEach(() => {
    vi.useFakeTimers();
    service = new FakeService();
    seen = [];
    states = [];
    stream = null;
    vi.stubGlobal("fetch", service.fetch);
  });
  afterEach(() => {
    stream?.close();
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });

  const open = (lastId?: string, isAsleep = false) => {
    stream = openStream({
      url: "/stream",
      isAsleep,
      ...(lastId === undefined ? {} : { lastId }),
      onMessages: (messages: SseMessage[]) => seen.push(...messages.map((one) => one.data)),
      onState: (state) => states.push(state),
    });
    return stream;
  };
  const phases = () => states.map((state) => state.phase);

  it("asks after a cut for exactly what it has not seen", async () => {
    service.answerWith(service.stream(message(1) + message(2), "cut"), service.stream(message(3), "open"));
    open();
    await vi.advanceTimersByTimeAsync(2000);
    expect(service.asked).toEqual([null, "2"]);
    expect(seen).toEqual(["1", "2", "3"]);
    expect(phases()).toEqual(["connecting", "live", "lost", "live"]);
  });

  it("goes on behind an id that came without data", async () => {
    service.answerWith(service.stream("id: 7\n\n", "cut"), service.stream(message(8), "open"));
    open();
    await vi.advanceTimersByTimeAsync(2000);
    expect(service.asked).toEqual([null, "7"]);
    expect(seen).toEqual(["8"]);
  });

  it("says since when it is lost: the last sign of life, not the last try", async () => {
    service.answerWith(service.stream(message(1), "cut"));
    const start = Date.now();
    open("0");
    await vi.advanceTimersByTimeAsync(20_000);
    const lost = states.filter((state) => state.phase === "lost");
    expect(lost.length).toBeGreaterThan(2);
    for (const state of lost) expect(state.phase === "lost" && state.since).toBe(start);
    expect(service.asked.slice(0, 3)).toEqual(["0", "1", "1"]);
  });

  it("counts the time asleep, for what is shown is as old", async () => {
    service.answerWith(service.stream(message(1), "open"));
    const start = Date.now();
    const opened = open();
    await vi.advanceTimersByTimeAsync(10);
    opened.sleep();
    await vi.advanceTimersByTimeAsync(3_600_000);
    opened.wake();
    await vi.advanceTimersByTimeAsync(10);
    expect(states.at(-1)).toEqual({ phase: "lost", since: start });
  });

  it("comes back without a word after a clean end", async () => {
    service.answerWith(service.stream(message(1), "clean"), service.stream(message(2), "open"));
    open();
    await vi.advanceTimersByTimeAsync(200);
    expect(seen).toEqual(["1", "2"]);
    expect(phases()).not.toContain("lost");
  });

  it("ends for good on an end message", async () => {
    service.answerWith(service.stream(`${message(1)}event: end\ndata: {}\n\n`, "clean"));
    open();
    await vi.advanceTimersByTimeAsync(30_000);
    expect(seen).toEqual(["1"]);
    expect(phases().at(-1)).toBe("ended");
    expect(service.asked).toHaveLength(1);
  });

  it("does not repeat a request that was refused", async () => {
    const body = JSON.stringify({
      title: "Not found",
      status: 404,
      detail: "There is no job x.",
      code: "not_found",
    });
    service.answerWith(() => new Response(body, { status: 404 }));
    open();
    await vi.advanceTimersByTimeAsync(30_000);
    const last = states.at(-1);
    expect(last?.phase === "refused" && last.error.message).toBe("There is no job x.");
    expect(service.asked).toHaveLength(1);
  });

  it("takes a long silence for a dead connection", async () => {
    service.answerWith(service.stream(message(1), "open"), service.stream(message(2), "open"));
    open();
    await vi.advanceTimersByTimeAsync(24_000);
    expect(service.asked).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(3000);
    expect(service.asked).toEqual([null, "1"]);
    expect(seen).toEqual(["1", "2"]);
  });

  it("gives its connection back while asleep and continues where it was", async () => {
    service.answerWith(service.stream(message(1), "open"), service.stream(message(2), "open"));
    const opened = open();
    await vi.advanceTimersByTimeAsync(10);
    opened.sleep();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(service.asked).toHaveLength(1);
    opened.wake();
    await vi.advanceTimersByTimeAsync(10);
    expect(service.asked).toEqual([null, "1"]);
    expect(seen).toEqual(["1", "2"]);
  });

  it("asks for nothing before it is woken", async () => {
    service.answerWith(service.stream(message(8), "open"));
    const opened = open("7", true);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(service.asked).toEqual([]);
    opened.wake();
    await vi.advanceTimersByTimeAsync(10);
    expect(service.asked).toEqual(["7"]);
    expect(phases()).toEqual(["asleep", "connecting", "live"]);
  });

  it("says nothing more once closed", async () => {
    service.answerWith(service.stream(message(1), "cut"));
    open().close();
    await vi.advanceTimersByTimeAsync(30_000);
    expect(phases()).toEqual(["connecting"]);
    expect(service.asked).toHaveLength(1);
  });
});

describe("decideDelay", () => {
  it("grows, and stays between a half and ten seconds", () => {
    const delays = [1, 2, 3, 4, 5, 50].map((failures) => decideDelay(failures, 0.5));
    expect(delays).toEqual([500, 1000, 2000, 4000, 8000, 8000]);
    expect(decideDelay(50, 1)).toBeLessThanOrEqual(10_000);
    expect(decideDelay(1, 0)).toBeGreaterThan(300);
  });
});

describe("lostSince", () => {
  it("is the last sign of the one that is lost longest", () => {
    expect(lostSince([{ phase: "live" }, { phase: "asleep" }])).toBeNull();
    expect(lostSince([{ phase: "lost", since: 7 }, { phase: "lost", since: 5 }, { phase: "live" }])).toBe(5);
  });
});
