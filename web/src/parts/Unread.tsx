import type { ApiError } from "../live/api";

/** In place of what could not be read. */
export function Unread({ error, onRetry }: { error: ApiError; onRetry: () => void }) {
  return (
    <div class="card empty" role="alert">
      <p class="error">{error.message}</p>
      <button type="button" class="button" onClick={onRetry}>
        Try again
      </button>
    </div>
  );
}
