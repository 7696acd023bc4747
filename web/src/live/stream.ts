/** One live stream that survives cuts: reconnects with back-off and asks for exactly what it has not seen. */

import { type ApiError, errorOf } from "./api";
import { type SseMessage, SseParser } from "./sse";

export type StreamState =
  | { phase: "connecting" }
  | { phase: "live" }
  /** `since`: epoch milliseconds of the last sign of life. */
  | { phase: "lost"; since: number }
  /** Nobody looks; the connection was given back. */
  | { phase: "asleep" }
  /** The service said that nothing more will come. */
  | { phase: "ended" }
  | { phase: "refused"; error: ApiError };

/** Since when nothing is heard of some of them, in epoch milliseconds; null: all are heard. */
export function lostSince(states: readonly StreamState[]): number | null {
  const times = states.flatMap((state) => (state.phase === "lost" ? [state.since] : []));
  return times.length > 0 ? Math.min(...times) : null;
}

export interface StreamOptions {
  url: string;
  /** Where to start: the id of the last message already known. */
  lastId?: string;
  /** All messages of one network read, in order. */
  onMessages: (messages: SseMessage[]) => void;
  onState: (state: StreamState) => void;
  /** It connects when it is woken, and not at once. */
  isAsleep?: boolean;
}

export interface Stream {
  close(): void;
  sleep(): void;
  wake(): void;
}

/** The service writes a comment every 10 s; two missed ones mean a dead connection that TCP has not noticed. */
const SILENCE_MS = 25_000;
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000];

/** Milliseconds before reconnect number `failures` (1 is the first), with jitter so that tabs do not return in step. */
export function decideDelay(failures: number, random: number): number {
  const base = BACKOFF_MS[Math.min(failures, BACKOFF_MS.length) - 1] ?? BACKOFF_MS[0] ?? 500;
  return base * (0.75 + random / 2);
}

/** Open `url` and keep it open until `close`, an `end` message, or a refusal (4xx). */
export function openStream(options: StreamOptions): Stream {
  return new LiveStream(options);
}

class LiveStream implements Stream {
  private readonly options: StreamOptions;
  private lastId: string | null;
  private abort: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;
  private lastSign = Date.now();
  private isOver = false;
  private isAsleep: boolean;
  private readonly onOnline = () => this.retryNow();

  constructor(options: StreamOptions) {
    this.options = options;
    this.lastId = options.lastId ?? null;
    globalThis.addEventListener?.("online", this.onOnline);
    this.isAsleep = options.isAsleep ?? false;
    options.onState({ phase: this.isAsleep ? "asleep" : "connecting" });
    if (!this.isAsleep) void this.connect();
  }

  close(): void {
    this.isOver = true;
    this.disconnect();
    globalThis.removeEventListener?.("online", this.onOnline);
  }

  sleep(): void {
    if (this.isOver || this.isAsleep) return;
    this.isAsleep = true;
    this.disconnect();
    this.options.onState({ phase: "asleep" });
  }

  wake(): void {
    if (this.isOver || !this.isAsleep) return;
    this.isAsleep = false;
    this.failures = 0;
    this.options.onState({ phase: "connecting" });
    void this.connect();
  }

  private disconnect(): void {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  private retryNow(): void {
    if (this.isOver || this.isAsleep || this.abort) return;
    clearTimeout(this.timer);
    void this.connect();
  }

  private async connect(): Promise<void> {
    const abort = new AbortController();
    this.abort = abort;
    let isClean = false;
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (this.lastId !== null) headers["Last-Event-ID"] = this.lastId;
      this.watch(abort);
      const response = await fetch(this.options.url, {
        headers,
        credentials: "same-origin",
        cache: "no-store",
        signal: abort.signal,
      });
      if (abort.signal.aborted) return;
      if (response.status >= 400 && response.status < 500 && response.status !== 429) {
        const error = await errorOf(response);
        this.finish({ phase: "refused", error });
        return;
      }
      if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
      isClean = await this.read(response.body, abort);
    } catch {
      // A cut, a refusal to connect, or the watchdog: all end in the same reconnect.
    }
    if (abort !== this.abort) return;
    this.abort = null;
    if (this.isOver || this.isAsleep) return;
    this.reconnectLater(isClean);
  }

  /** Read to the end. True: the service closed in good order (it does so after ten minutes). */
  private async read(body: ReadableStream<Uint8Array>, abort: AbortController): Promise<boolean> {
    const parser = new SseParser();
    const decoder = new TextDecoder();
    const reader = body.getReader();
    this.options.onState({ phase: "live" });
    let received = 0;
    for (;;) {
      const { done, value } = await reader.read();
      if (abort.signal.aborted) return false;
      if (done) return received > 0;
      received += value.length;
      this.failures = 0;
      this.lastSign = Date.now();
      this.watch(abort);
      const messages = parser.push(decoder.decode(value, { stream: true }));
      this.lastId = parser.lastId ?? this.lastId;
      if (messages.length > 0) this.deliver(messages);
      if (this.isOver) return true;
    }
  }

  private deliver(messages: SseMessage[]): void {
    const end = messages.findIndex((message) => message.event === "end");
    const wanted = end < 0 ? messages : messages.slice(0, end);
    if (wanted.length > 0) this.options.onMessages(wanted);
    if (end >= 0) this.finish({ phase: "ended" });
  }

  private finish(state: StreamState): void {
    if (this.isOver) return;
    this.close();
    this.options.onState(state);
  }

  private reconnectLater(isClean: boolean): void {
    this.failures += 1;
    // A clean end is the service's ten-minute rule, no loss: come back at once and say nothing.
    if (isClean && this.failures === 1) {
      this.timer = setTimeout(() => void this.connect(), 50);
      return;
    }
    this.options.onState({ phase: "lost", since: this.lastSign });
    this.timer = setTimeout(() => void this.connect(), decideDelay(this.failures, Math.random()));
  }

  private watch(abort: AbortController): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => abort.abort(), SILENCE_MS);
  }
}
