import { useRef } from "preact/hooks";
import type { ApiError } from "../live/api";
import { formatCoarse } from "../text/format";

/** Says that what is shown is old, and since when; nothing where the last reading came. */
export function StaleNote({ error, now }: { error: ApiError | null; now: number }) {
  const lastGood = useRef(now);
  if (error === null) lastGood.current = now;
  if (error === null) return null;
  return (
    <div class="banner banner-bad" role="status">
      {error.message} What you see is {formatCoarse((now - lastGood.current) / 1000)} old.
    </div>
  );
}
