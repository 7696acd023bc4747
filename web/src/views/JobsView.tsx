import { useCallback, useEffect, useMemo, useReducer, useState } from "preact/hooks";
import { get } from "../live/api";
import { useNow, useResource, useStream, useThrottled } from "../live/hooks";
import type { SseMessage } from "../live/sse";
import { Copy } from "../parts/Copy";
import { Heading } from "../parts/Heading";
import { Icon } from "../parts/Icon";
import { SearchField } from "../parts/SearchField";
import { StreamBanner } from "../parts/StreamBanner";
import { useSay } from "../parts/Toasts";
import { useMaySubmit } from "../parts/useMe";
import { comparePath } from "../state/compare";
import {
  countByStatus,
  emptySentence,
  filterQuery,
  type JobsAction,
  type JobsFilter,
  type JobsState,
  NO_JOBS,
  readFilter,
  reduceJobs,
  searchQuery,
  selectJobs,
} from "../state/jobs";
import { plural } from "../text/format";
import { type ClusterView, isFinal, type Job, STATUSES } from "../wire";
import { JobsTable } from "./JobsTable";
import { NewJob } from "./NewJob";

interface Page {
  items: Job[];
  next_cursor: string | null;
}

function readMessages(messages: SseMessage[]): JobsAction[] {
  return messages.flatMap((message): JobsAction[] => {
    if (message.event === "snapshot") {
      const page = JSON.parse(message.data) as Page;
      return [{ type: "snapshot", items: page.items, next: page.next_cursor }];
    }
    if (message.event === "job") return [{ type: "job", job: JSON.parse(message.data) as Job }];
    if (message.event === "deleted") {
      return [{ type: "deleted", id: (JSON.parse(message.data) as { id: string }).id }];
    }
    return [];
  });
}

/** What was searched for last, and behind which snapshot. */
interface Searched {
  query: string | null;
  snapshots: number;
}

const PAGE_QUERY = "limit=200&history=true";
/** One request while somebody types, not one a letter. */
const TYPING_MS = 300;

/** What is ticked is still so after a look at the comparison. */
let lastPicked: ReadonlySet<string> = new Set();

/** All jobs, live. */
export function JobsView() {
  const [state, dispatch] = useReducer(reduceJobs, NO_JOBS);
  const stream = useStream({
    path: "/events?history=true",
    onMessages: (messages) => dispatch(readMessages(messages)),
  });
  const [filter, setFilter] = useFilter();
  // Beyond the snapshot the service is asked, once somebody stops typing.
  const wanted = state.next === null ? null : searchQuery(filter);
  const search = useThrottled(wanted, TYPING_MS);
  const [searched, setSearched] = useState<Searched>({ query: null, snapshots: 0 });
  const isSearching =
    wanted !== null && (searched.query !== wanted || searched.snapshots !== state.snapshots);
  // What lies beyond a snapshot was not watched before it: once all that is open is read again, the rest is forgotten.
  const [reread, setReread] = useState(0);
  const isReread =
    reread === state.snapshots &&
    (search === null || (searched.query === search && searched.snapshots === state.snapshots));
  useEffect(() => {
    if (isReread) dispatch([{ type: "reread" }]);
  }, [isReread, state.snapshots]);
  const maySubmit = useMaySubmit();
  const now = useNow();
  const jobs = useMemo(() => selectJobs(state, filter), [state, filter]);
  const taken = useMemo(
    () => new Set([...state.jobs.values()].filter((job) => !isFinal(job.status)).map((job) => job.name)),
    [state.jobs],
  );
  const [picked, setPicked] = useState<ReadonlySet<string>>(lastPicked);
  useEffect(() => {
    lastPicked = picked;
  }, [picked]);
  const choose = useCallback((id: string) => setPicked((before) => withOrWithout(before, id)), []);
  const chosen = useMemo(() => new Set([...picked].filter((id) => state.jobs.has(id))), [picked, state.jobs]);
  useEffect(() => {
    document.title = "Jobs · Rubato";
  }, []);
  return (
    <main class="page">
      <StreamBanner states={[stream]} />
      <div class="page-head">
        <Heading>Jobs</Heading>
        <ClusterLine />
        {maySubmit && <NewJob taken={taken} />}
      </div>
      {state.isLoaded && state.jobs.size === 0 ? (
        <NoJobs maySubmit={maySubmit} />
      ) : (
        <>
          <Filters
            filter={filter}
            onChange={setFilter}
            counts={countByStatus(state)}
            total={state.jobs.size}
            isLoaded={state.isLoaded}
            isWhole={state.isWhole}
          />
          {!state.isLoaded ? (
            <LoadingRows />
          ) : jobs.length > 0 ? (
            <JobsTable
              jobs={jobs}
              pace={state.pace}
              losses={state.losses}
              now={now}
              chosen={chosen}
              onChoose={choose}
            />
          ) : isSearching ? (
            <p class="soft center" role="status">
              Looking among older jobs…
            </p>
          ) : (
            <div class="card empty">
              <p class="soft" role="status">
                {emptySentence(state, filter)}
              </p>
              <button type="button" class="button" onClick={() => setFilter(readFilter(""))}>
                Show all jobs
              </button>
            </div>
          )}
          <MoreJobs
            query={PAGE_QUERY}
            first={state.next}
            begin={0}
            label={wanted === null ? "Older jobs" : null}
            snapshots={state.snapshots}
            onPage={({ after, ...page }) => after && dispatch([{ type: "older", after, ...page }])}
            onSettled={setReread}
          />
          {search !== null && (
            <MoreJobs
              key={search}
              query={`${PAGE_QUERY}&${search}`}
              first={null}
              begin={1}
              label="More that match"
              snapshots={state.snapshots}
              onPage={({ items }) => dispatch([{ type: "found", items }])}
              onSettled={(snapshots) => setSearched({ query: search, snapshots })}
            />
          )}
          <Chosen state={state} chosen={chosen} onClear={() => setPicked(new Set())} />
        </>
      )}
    </main>
  );
}

interface ChosenProps {
  state: JobsState;
  chosen: ReadonlySet<string>;
  onClear: () => void;
}

/** Those that are to be compared, and the way there; it stays in sight while the list moves. */
function Chosen({ state, chosen, onClear }: ChosenProps) {
  const ids = [...chosen];
  if (ids.length === 0) return null;
  const names = ids.map((id) => state.jobs.get(id)?.name).join(", ");
  return (
    <section class="card chosen" aria-label="Chosen jobs">
      <span class="chosen-names" role="status">
        {names}
        {ids.length === 1 && <span class="soft"> – choose one more</span>}
      </span>
      <button type="button" class="button" onClick={onClear}>
        Clear
      </button>
      {ids.length > 1 ? (
        <a class="button primary" href={comparePath({ jobs: ids })}>
          Compare
        </a>
      ) : (
        <button type="button" class="button primary" disabled>
          Compare
        </button>
      )}
    </section>
  );
}

function withOrWithout(chosen: ReadonlySet<string>, id: string): ReadonlySet<string> {
  const next = new Set(chosen);
  if (!next.delete(id)) next.add(id);
  return next;
}

/** The filter stands in the address: it can be sent to somebody, and is there again after a look at a job. */
function useFilter(): [JobsFilter, (filter: JobsFilter) => void] {
  const [filter, setFilter] = useState(() => readFilter(location.search));
  useEffect(() => {
    const read = () => setFilter(readFilter(location.search));
    window.addEventListener("popstate", read);
    return () => window.removeEventListener("popstate", read);
  }, []);
  const change = (wanted: JobsFilter) => {
    history.replaceState(null, "", location.pathname + filterQuery(wanted));
    setFilter(wanted);
  };
  return [filter, change];
}

interface FiltersProps {
  filter: JobsFilter;
  onChange: (filter: JobsFilter) => void;
  counts: ReturnType<typeof countByStatus>;
  total: number;
  isLoaded: boolean;
  /** Whether that is all there are. */
  isWhole: boolean;
}

function Filters({ filter, onChange, counts, total, isLoaded, isWhole }: FiltersProps) {
  const active = [...counts].reduce((sum, [status, count]) => sum + (isFinal(status) ? 0 : count), 0);
  const choices: [JobsFilter["status"], number][] = [
    ["all", total],
    ["active", active],
  ];
  for (const status of STATUSES)
    if (counts.has(status) || filter.status === status) choices.push([status, counts.get(status) ?? 0]);
  return (
    <div class="filters">
      <fieldset class="chips" aria-label="Filter by status">
        {choices.map(([status, count]) => (
          <button
            type="button"
            key={status}
            class="chip-toggle"
            aria-pressed={filter.status === status}
            onClick={() => onChange({ ...filter, status })}
          >
            {status}{" "}
            {isLoaded ? (
              <span
                class="count"
                title={isWhole ? undefined : "Of the jobs read so far; there are older ones"}
              >
                {count}
                {!isWhole && "+"}
              </span>
            ) : (
              <span class="count count-unknown" />
            )}
          </button>
        ))}
      </fieldset>
      <SearchField
        label="Search jobs"
        placeholder="Name, project, label, reason"
        text={filter.text}
        onText={(text) => onChange({ ...filter, text })}
      />
    </div>
  );
}

function ClusterLine() {
  const now = useNow(5000);
  const { value } = useResource<ClusterView>("/cluster", now);
  if (!value) return <p class="cluster-line" />; // its room, so that nothing moves when it comes
  const online = value.clusters.filter((cluster) => cluster.status === "online");
  if (online.length === 0)
    return <p class="cluster-line warn">No cluster is online: jobs wait until an agent connects.</p>;
  const total = online.reduce((sum, cluster) => sum + cluster.slots_total, 0);
  const used = online.reduce((sum, cluster) => sum + cluster.slots_used, 0);
  const nodes = online.reduce((sum, cluster) => sum + cluster.nodes.length, 0);
  return (
    <p class="cluster-line soft">
      <span class="gauge" aria-hidden="true">
        <i style={{ width: `${total > 0 ? (used / total) * 100 : 0}%` }} />
      </span>
      {used} of {plural(total, "slot")} in use · {plural(nodes, "node")}
    </p>
  );
}

interface MoreJobsProps {
  /** What is asked for, without the page. */
  query: string;
  /** Cursor that the first page begins behind; null: with the newest job. */
  first: string | null;
  /** Pages that are read without a click. */
  begin: number;
  /** Null: no more is wanted at present, and what was read stays. */
  label: string | null;
  snapshots: number;
  onPage: (page: { items: Job[]; after: string | null; next: string | null }) => void;
  /** All pages were read, or one could not be. */
  onSettled: (snapshots: number) => void;
}

/** One page more for each click. With each snapshot those that are open are read again: they were not watched meanwhile. */
function MoreJobs({ query, first, begin, label, snapshots, onPage, onSettled }: MoreJobsProps) {
  const [open, setOpen] = useState(begin);
  const [end, setEnd] = useState<string | null>(null);
  const say = useSay();
  useEffect(() => {
    const abort = new AbortController();
    const read = async () => {
      let after = first;
      for (let page = 0; page < open; page++) {
        const cursor = after === null ? "" : `&cursor=${encodeURIComponent(after)}`;
        const { items, next_cursor: next } = await get<Page>(`/jobs?${query}${cursor}`, abort.signal);
        onPage({ items, after, next });
        after = next;
        if (after === null) break;
      }
      setEnd(after);
      onSettled(snapshots);
    };
    read().catch((error: unknown) => {
      if (abort.signal.aborted) return;
      say("bad", error instanceof Error ? error.message : String(error));
      onSettled(snapshots);
    });
    return () => abort.abort();
  }, [query, open, first, snapshots]);
  if (end === null || label === null) return null;
  return (
    <p class="center">
      <button type="button" class="button" onClick={() => setOpen(open + 1)}>
        {label}
      </button>
    </p>
  );
}

const EXAMPLE = "rubato init && rubato submit job.yaml --follow";

function NoJobs({ maySubmit }: { maySubmit: boolean }) {
  if (!maySubmit) {
    return (
      <div class="card empty">
        <Icon name="mark" />
        <h2>No jobs yet</h2>
        <p class="soft">
          Nobody has submitted one to your projects. To submit some yourself, ask an admin of a project to
          make you its editor.
        </p>
      </div>
    );
  }
  return (
    <div class="card empty">
      <Icon name="mark" />
      <h2>No jobs yet</h2>
      <p class="soft">
        Submit one here, or write a starter and submit it from a terminal. It appears the moment it is
        accepted.
      </p>
      <pre class="command">
        <code>{EXAMPLE}</code>
        <Copy text={EXAMPLE} label="Copy the command" />
      </pre>
    </div>
  );
}

function LoadingRows() {
  return (
    <div class="card loading" role="status" aria-label="Loading jobs">
      {[0, 1, 2, 3].map((row) => (
        <i key={row} class="bone" />
      ))}
    </div>
  );
}
