import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import { Board } from "../charts/Board";
import { CHART_POINTS, MOST_ROWS, rowsOfChart } from "../charts/history";
import { isPlain, tabAfter } from "../charts/keys";
import { SkewCard } from "../charts/SkewCard";
import { Timeline } from "../charts/Timeline";
import { useNow, useResource, useStream } from "../live/hooks";
import type { SseMessage } from "../live/sse";
import { lostSince } from "../live/stream";
import { FailureCard } from "../parts/FailureCard";
import { Heading } from "../parts/Heading";
import { Icon } from "../parts/Icon";
import { StreamBanner } from "../parts/StreamBanner";
import { jobPath, TABS, type Tab } from "../router";
import { type JobAction, type JobState, NO_JOB, reduceJob } from "../state/job";
import { isFinal, type Job, type JobEvent, type MetricChart, type MetricRow } from "../wire";
import { CheckpointsTab } from "./CheckpointsTab";
import { CodeTab } from "./CodeTab";
import { EventsTab } from "./EventsTab";
import { JobHeader } from "./JobHeader";
import { LogsTab } from "./LogsTab";
import { PendingCard } from "./PendingCard";
import { SpecTab } from "./SpecTab";
import { Tiles } from "./Tiles";
import { WorkersTab } from "./WorkersTab";

function reduceAll(state: JobState, actions: JobAction[]): JobState {
  return actions.reduce(reduceJob, state);
}

function readEvents(messages: SseMessage[]): JobAction[] {
  const items = messages
    .filter((one) => one.event === "event")
    .map((one) => JSON.parse(one.data) as JobEvent);
  const jobs = messages.filter((one) => one.event === "job").map((one) => JSON.parse(one.data) as Job);
  return [{ type: "events", items }, ...jobs.slice(-1).map((job): JobAction => ({ type: "job", job }))];
}

function readMetrics(messages: SseMessage[]): JobAction[] {
  const items = messages
    .filter((one) => one.event === "metrics")
    .flatMap((one) => (JSON.parse(one.data) as { items: MetricRow[] }).items);
  return [{ type: "metrics", items }];
}

interface JobViewProps {
  /** An id, or a name: then the newest job of that name. */
  id: string;
  tab: Tab;
  theme: string;
}

/** One job, live. */
export function JobView({ id, tab, theme }: JobViewProps) {
  const [state, dispatch] = useReducer(reduceAll, NO_JOB);
  const found = useResource<Job>(`/jobs/${encodeURIComponent(id)}`);
  useEffect(() => {
    if (found.value) dispatch([{ type: "job", job: found.value }]);
  }, [found.value]);
  const jobId = found.value?.id ?? null;
  const path = jobId && `/jobs/${encodeURIComponent(jobId)}`;
  const events = useStream({
    path: path && `${path}/events`,
    onMessages: (all) => dispatch(readEvents(all)),
  });
  // Of a long job the service thins out what lies behind; the stream goes on from there. A job that becomes long while
  // it is looked at has its past thinned out again and again.
  const isLong = (found.value?.step ?? 0) > MOST_ROWS;
  const [thinnings, setThinnings] = useState(0);
  const isCrowded = state.single > MOST_ROWS;
  useEffect(() => {
    if (isCrowded) setThinnings((before) => before + 1);
  }, [isCrowded]);
  const past = useResource<MetricChart>(
    path && (isLong || thinnings > 0) ? `${path}/metrics/chart?max_points=${CHART_POINTS}` : null,
    thinnings,
  );
  useEffect(() => {
    if (past.value) dispatch([{ type: "chart", items: rowsOfChart(past.value) }]);
  }, [past.value]);
  const metrics = useStream({
    path: path && (!isLong || past.value) ? `${path}/metrics` : null,
    ...(past.value ? { lastId: String(past.value.position) } : {}),
    isWanted: tab === "overview",
    onMessages: (all) => dispatch(readMetrics(all)),
  });
  const now = useNow();
  // What the job did since is not known, and no figure grows by it.
  const told = lostSince([events, metrics]) ?? now;
  const { job } = state;
  useEffect(() => {
    document.title = job ? `${job.name} · ${job.status} · Rubato` : "Job · Rubato";
  }, [job?.name, job?.status]);

  if (!job)
    return found.error ? (
      <NoJob id={id} message={found.error.message} onRetry={found.reload} />
    ) : (
      <LoadingJob />
    );
  const onJob = (changed: Job) => dispatch([{ type: "job", job: changed }]);
  return (
    <main class="page">
      <StreamBanner states={jobId ? [events, metrics] : []} />
      <JobHeader job={job} events={state.events} now={told} onJob={onJob} />
      <TabBar job={job} tab={tab} events={state.events.length} />
      <div class="tab-panel" id="tab-panel" role="tabpanel" tabIndex={-1} aria-labelledby={`tab-${tab}`}>
        {tab === "overview" && (
          <Overview
            state={state}
            job={job}
            now={now}
            told={told}
            theme={theme}
            isLoading={isLong && !past.value}
          />
        )}
        {tab === "workers" && <WorkersTab job={job} />}
        {tab === "logs" && <LogsTab job={job} now={now} />}
        {tab === "events" && <EventsTab events={state.events} now={now} />}
        {tab === "checkpoints" && <CheckpointsTab job={job} events={state.events} now={now} />}
        {tab === "spec" && <SpecTab job={job} />}
        {tab === "code" && <CodeTab job={job} />}
      </div>
    </main>
  );
}

interface OverviewProps {
  state: JobState;
  job: Job;
  now: number;
  /** Up to when it is known what the job did. */
  told: number;
  theme: string;
  isLoading: boolean;
}

function Overview({ state, job, now, told, theme, isLoading }: OverviewProps) {
  return (
    <>
      {job.failure && <FailureCard job={job} failure={job.failure} events={state.events} />}
      {job.status === "queued" && <PendingCard job={job} now={now} />}
      <Tiles job={job} rows={state.rows} events={state.events} now={told} />
      <Timeline job={job} events={state.events} now={told} />
      {(state.rows.length > 0 || !isFinal(job.status)) && (
        <Board job={job} rows={state.rows} events={state.events} theme={theme} isLoading={isLoading} />
      )}
      {job.workers > 1 && !isFinal(job.status) && <SkewCard job={job} />}
      <EventsTab
        events={state.events.slice(-6)}
        now={now}
        more={state.events.length > 6 ? jobPath(job.id, "events") : null}
      />
    </>
  );
}

const TAB_NAMES: Record<Tab, string> = {
  overview: "Overview",
  workers: "Workers",
  logs: "Logs",
  events: "Events",
  checkpoints: "Checkpoints",
  spec: "Spec",
  code: "Code",
};

function TabBar({ job, tab, events }: { job: Job; tab: Tab; events: number }) {
  const counts: Partial<Record<Tab, number>> = { workers: job.workers, events };
  const onKeyDown = (event: KeyboardEvent) => {
    const place = isPlain(event) ? tabAfter(event.key, TABS.indexOf(tab), TABS.length) : null;
    if (place === null) return;
    event.preventDefault(); // Home and End would scroll
    const next = TABS[place];
    document.getElementById(`tab-${next}`)?.click();
    document.getElementById(`tab-${next}`)?.focus();
  };
  const bar = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => showTab(bar.current, document.getElementById(`tab-${tab}`)), [tab]);
  return (
    <div class="tabs" role="tablist" aria-label="Parts of the job" ref={bar} onKeyDown={onKeyDown}>
      {TABS.map((name) => (
        <a
          key={name}
          id={`tab-${name}`}
          role="tab"
          aria-controls="tab-panel"
          aria-selected={name === tab}
          tabIndex={name === tab ? 0 : -1}
          href={`${jobPath(job.id)}#${name}`}
        >
          {TAB_NAMES[name]}
          {counts[name] ? <span class="count">{counts[name]}</span> : null}
        </a>
      ))}
    </div>
  );
}

/** Where the row is wider than the window: the tab in the middle of it. */
function showTab(bar: HTMLElement | null, tab: HTMLElement | null): void {
  if (bar && tab) bar.scrollLeft = tab.offsetLeft - (bar.clientWidth - tab.offsetWidth) / 2;
}

function NoJob({ id, message, onRetry }: { id: string; message: string; onRetry: () => void }) {
  return (
    <main class="page center">
      <Heading>Cannot show {id}</Heading>
      <p class="soft">{message}</p>
      <p class="actions">
        <a class="button" href="/">
          <Icon name="back" /> All jobs
        </a>
        <button type="button" class="button" onClick={onRetry}>
          Try again
        </button>
      </p>
    </main>
  );
}

function LoadingJob() {
  return (
    <main class="page loading" aria-busy="true" aria-label="Loading the job">
      <h1 class="hidden">Loading the job</h1>
      <i class="bone bone-head" />
      <i class="bone bone-tiles" />
      <i class="bone bone-board" />
    </main>
  );
}
