/** Streams, resources and clocks as hooks. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { API, ApiError, get } from "./api";
import type { SseMessage } from "./sse";
import { openStream, type StreamState } from "./stream";

/** A hidden tab gives its connections back after this long: browsers allow six to a host, over all tabs. */
const SLEEP_AFTER_MS = 15_000;

export interface StreamRequest {
  /** Below /api/v1; null: no stream. */
  path: string | null;
  lastId?: string | undefined;
  onMessages: (messages: SseMessage[]) => void;
}

/** Keep one stream open while the component lives and the tab is seen. */
export function useStream({ path, lastId, onMessages }: StreamRequest): StreamState {
  const [state, setState] = useState<StreamState>({ phase: "connecting" });
  const handler = useRef(onMessages);
  handler.current = onMessages;
  useEffect(() => {
    if (path === null) return;
    const stream = openStream({
      url: API + path,
      ...(lastId === undefined ? {} : { lastId }),
      onMessages: (messages) => handler.current(messages),
      onState: setState,
    });
    let timer: ReturnType<typeof setTimeout> | undefined;
    const onVisibility = () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(() => stream.sleep(), SLEEP_AFTER_MS);
      else stream.wake();
    };
    document.addEventListener("visibilitychange", onVisibility);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisibility);
      stream.close();
    };
  }, [path, lastId]);
  return state;
}

export interface Resource<T> {
  value: T | null;
  error: ApiError | null;
  isLoading: boolean;
  reload: () => void;
}

/** Where the service does not answer, a resource is asked for again after this long. */
const RETRY_MS = 3000;

/**
 * Read a resource, and again whenever `version` changes. The last value stays while a newer one is on its way, and
 * beside an error. Where the service cannot be reached or is broken it is asked again until it answers.
 */
export function useResource<T>(path: string | null, version: unknown = 0): Resource<T> {
  const [state, setState] = useState<{ path: string | null; value: T | null; error: ApiError | null }>({
    path: null,
    value: null,
    error: null,
  });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    get<T>(path, abort.signal).then(
      (value) => setState({ path, value, error: null }),
      (error: unknown) => {
        if (!(error instanceof ApiError)) return;
        setState((before) => ({ path, value: before.path === path ? before.value : null, error }));
        if (error.isTransient) timer = setTimeout(() => setRound((before) => before + 1), RETRY_MS);
      },
    );
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, version, round]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  const isCurrent = state.path === path;
  return {
    value: isCurrent ? state.value : null,
    error: isCurrent ? state.error : null,
    isLoading: !isCurrent,
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
