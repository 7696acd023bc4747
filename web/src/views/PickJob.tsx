import { useState } from "preact/hooks";
import { useResource, useThrottled } from "../live/hooks";
import { SearchField } from "../parts/SearchField";
import { StatusChip } from "../parts/StatusChip";
import { Unread } from "../parts/Unread";
import { type Comparison, comparePath } from "../state/compare";
import { formatAgo } from "../text/format";
import type { Job } from "../wire";

/** More would be a list, and that is a view of its own. */
const MOST_SHOWN = 8;
/** One request while somebody types, not one a letter. */
const TYPING_MS = 300;

interface PickJobProps {
  wanted: Comparison;
  /** Ids of those that are compared already. */
  known: readonly string[];
  now: number;
}

/** Jobs by name, the newest first; each leads to the comparison with it. */
export function PickJob({ wanted, known, now }: PickJobProps) {
  const [text, setText] = useState("");
  const asked = useThrottled(text.trim(), TYPING_MS);
  const limit = MOST_SHOWN + known.length;
  const { value, error, reload } = useResource<{ items: Job[] }>(
    `/jobs?limit=${limit}&q=${encodeURIComponent(asked)}`,
  );
  const found = value?.items.filter((job) => !known.includes(job.id)).slice(0, MOST_SHOWN);
  return (
    <section class="card pick" aria-labelledby="pick-title">
      <header class="card-head">
        <h2 id="pick-title">{known.length === 0 ? "Choose a job to begin with" : "Compare with"}</h2>
        <SearchField
          label="Find a job by its name"
          placeholder="Part of the name"
          text={text}
          onText={setText}
        />
      </header>
      {error && !value && <Unread error={error} onRetry={reload} />}
      <ul class="pick-list" aria-busy={!value && !error}>
        {found?.map((job) => (
          <li key={job.id}>
            <a href={comparePath({ ...wanted, jobs: [...wanted.jobs, job.id] })}>{job.name}</a>
            <StatusChip job={job} />
            <span class="soft">{formatAgo(job.created_at, now)}</span>
          </li>
        ))}
      </ul>
      {found?.length === 0 && (
        <p class="soft pick-none">{asked ? "No job has such a name." : "There is no other job."}</p>
      )}
    </section>
  );
}
