/** Streams, resources and clocks as hooks. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { API, type ApiError, get } from "./api";
import { Reads } from "./reads";
import type { SseMessage } from "./sse";
import { openStream, type Stream, type StreamState } from "./stream";

/** A hidden tab gives its connections back after this long: browsers allow six to a host, over all tabs and windows. */
const SLEEP_AFTER_MS = 15_000;

export interface StreamRequest {
  /** Below /api/v1; null: no stream. */
  path: string | null;
  lastId?: string | undefined;
  /** Whether what it tells is shown. Until then it holds no connection, and goes on later where it was. */
  isWanted?: boolean;
  onMessages: (messages: SseMessage[]) => void;
}

/** Keep one stream open while the component lives, and what it tells and the tab are seen. */
export function useStream({ path, lastId, isWanted = true, onMessages }: StreamRequest): StreamState {
  const [state, setState] = useState<StreamState>({ phase: "connecting" });
  const handler = useRef(onMessages);
  handler.current = onMessages;
  const opened = useRef<Stream | null>(null);
  useEffect(() => {
    if (path === null) return;
    const stream = openStream({
      url: API + path,
      ...(lastId === undefined ? {} : { lastId }),
      isAsleep: true,
      onMessages: (messages) => handler.current(messages),
      onState: setState,
    });
    opened.current = stream;
    return () => {
      opened.current = null;
      stream.close();
    };
  }, [path, lastId]);
  useEffect(() => {
    const stream = opened.current;
    if (!stream || !isWanted) return;
    stream.wake();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const onVisibility = () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(() => stream.sleep(), SLEEP_AFTER_MS);
      else stream.wake();
    };
    document.addEventListener("visibilitychange", onVisibility);
    onVisibility(); // a page may be opened in a tab that is not seen yet
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisibility);
      stream.sleep();
    };
  }, [path, lastId, isWanted]);
  return state;
}

export interface Resource<T> {
  value: T | null;
  error: ApiError | null;
  isLoading: boolean;
  /** When the value came, in epoch milliseconds; null: there is none. */
  readAt: number | null;
  reload: () => void;
}

interface Reading<T> {
  path: string | null;
  value: T | null;
  error: ApiError | null;
  readAt: number | null;
}

const NOTHING_READ = { path: null, value: null, error: null, readAt: null };

/**
 * Read a resource, and again whenever `version` changes. The last value stays while a newer one is on its way, and
 * beside an error. A reply is taken also where `version` has changed meanwhile. Where the service cannot be reached or
 * is broken it is asked again until it answers.
 */
export function useResource<T>(
  path: string | null,
  version: unknown = 0,
  read: (path: string, signal: AbortSignal) => Promise<T> = get,
): Resource<T> {
  const [state, setState] = useState<Reading<T>>(NOTHING_READ);
  const reads = useRef<Reads<T> | null>(null);
  useEffect(() => {
    if (path === null) return;
    const begun = new Reads<T>({
      read: (signal) => read(path, signal),
      onValue: (value) => setState({ path, value, error: null, readAt: Date.now() }),
      onError: (error) =>
        setState((before) => ({ ...(before.path === path ? before : NOTHING_READ), path, error })),
    });
    reads.current = begun;
    return () => {
      begun.close();
      reads.current = null;
    };
  }, [path]);
  useEffect(() => reads.current?.ask(), [path, version]);
  const reload = useCallback(() => reads.current?.ask(), []);
  const isCurrent = state.path === path;
  return {
    value: isCurrent ? state.value : null,
    error: isCurrent ? state.error : null,
    isLoading: !isCurrent,
    readAt: isCurrent ? state.readAt : null,
    reload,
  };
}

/** The time, renewed every `ms`; a component that shows an age re-renders with it. */
export function useNow(ms = 1000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}

/** A value that follows `value` at most once in `ms`: for reading a resource again on a busy signal. */
export function useThrottled<T>(value: T, ms: number): T {
  const [shown, setShown] = useState(value);
  const last = useRef(0);
  useEffect(() => {
    const wait = Math.max(0, last.current + ms - Date.now());
    const timer = setTimeout(() => {
      last.current = Date.now();
      setShown(value);
    }, wait);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return shown;
}
