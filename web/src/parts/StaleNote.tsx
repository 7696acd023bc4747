import type { Resource } from "../live/hooks";
import { formatCoarse } from "../text/format";

interface StaleNoteProps {
  of: Pick<Resource<unknown>, "error" | "readAt">;
  now: number;
}

/** Says that what is shown is old, and since when; nothing where the last reading came, or none ever did. */
export function StaleNote({ of: { error, readAt }, now }: StaleNoteProps) {
  if (error === null || readAt === null) return null;
  return (
    <div class="banner banner-bad">
      <span>
        What you see is {formatCoarse(Math.max(1, (now - readAt) / 1000))} old.{" "}
        <span role="status">{error.message}</span>
      </span>
    </div>
  );
}
