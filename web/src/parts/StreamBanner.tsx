import { useNow } from "../live/hooks";
import { lostSince, type StreamState } from "../live/stream";
import { formatCoarse } from "../text/format";

/** Says when what is shown is no longer live, and since when; aloud only that, not each second of the age. */
export function StreamBanner({ states }: { states: StreamState[] }) {
  const now = useNow();
  const refused = states.find((state) => state.phase === "refused");
  if (refused?.phase === "refused" && !refused.error.isUnauthenticated) {
    return (
      <div class="banner banner-bad" role="alert">
        Live updates were refused: {refused.error.message}
      </div>
    );
  }
  const since = lostSince(states);
  if (since === null) return null;
  return (
    <div class="banner" data-banner="stale">
      <i class="pulse" aria-hidden="true" />
      <span>
        <span role="status">Live updates lost</span> {formatCoarse(Math.max(1, (now - since) / 1000))} ago —
        reconnecting. Running jobs train on.
      </span>
    </div>
  );
}
