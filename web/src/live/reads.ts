/** Reading one resource again and again: one read at a time, and its reply is always taken. */

import { ApiError } from "./api";

export interface ReadsOptions<T> {
  read: (signal: AbortSignal) => Promise<T>;
  onValue: (value: T) => void;
  onError: (error: ApiError) => void;
}

/** Where the service cannot be reached or is broken, it is asked again after this long. */
const RETRY_MS = 3000;
/** A connection may die unnoticed; the service holds back no reply of a resource for so long. */
const PATIENCE_MS = 30_000;

/**
 * Who asks while a read is under way gets its reply, and one read more begins behind it, however often it was asked:
 * a service that is slower than the page renews itself is seen late, and not never.
 */
export class Reads<T> {
  private readonly options: ReadsOptions<T>;
  private abort: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isAskedAgain = false;
  private isClosed = false;

  constructor(options: ReadsOptions<T>) {
    this.options = options;
  }

  /** What is shown may be old. */
  ask(): void {
    if (this.isClosed) return;
    if (this.abort) this.isAskedAgain = true;
    else void this.run();
  }

  /** Nobody looks any more. */
  close(): void {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.abort?.abort();
  }

  private async run(): Promise<void> {
    const abort = new AbortController();
    this.abort = abort;
    this.isAskedAgain = false;
    clearTimeout(this.timer);
    let isGivenUp = false;
    this.timer = setTimeout(() => {
      isGivenUp = true;
      abort.abort();
    }, PATIENCE_MS);
    let isTransient = false;
    try {
      const value = await this.options.read(abort.signal);
      if (!this.isClosed) this.options.onValue(value);
    } catch (reason) {
      const error = isGivenUp ? noReply() : reason;
      if (!this.isClosed && error instanceof ApiError) {
        isTransient = error.isTransient;
        this.options.onError(error);
      }
    }
    this.abort = null;
    clearTimeout(this.timer);
    if (this.isClosed) return;
    if (this.isAskedAgain && !isTransient) void this.run();
    else if (isTransient) this.timer = setTimeout(() => this.ask(), RETRY_MS);
  }
}

function noReply(): ApiError {
  return new ApiError(0, "no_reply", `The service has not answered for ${PATIENCE_MS / 1000} s.`);
}
