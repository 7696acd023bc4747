import { useEffect } from "preact/hooks";
import type { Choice } from "../charts/BoardBar";
import { orderNames } from "../charts/data";
import { type RunDrawn, RunsBoard } from "../charts/RunsBoard";
import { useNow } from "../live/hooks";
import { type Run, useRun, useRunChart } from "../live/runs";
import { Heading } from "../parts/Heading";
import { Icon } from "../parts/Icon";
import { StaleNote } from "../parts/StaleNote";
import { Unread } from "../parts/Unread";
import { restate } from "../router";
import { type Comparison, comparePath, MOST_COMPARED, metricsShown } from "../state/compare";
import { CompareTable, type JobCompared } from "./CompareTable";
import { PickJob } from "./PickJob";

interface CompareViewProps {
  wanted: Comparison;
  theme: string;
}

/** Up to four jobs over each other: their curves, and below them what differs. The address is the whole state. */
export function CompareView({ wanted, theme }: CompareViewProps) {
  const now = useNow();
  const slots = [0, 1, 2, 3].map((place) => useRun(wanted.jobs[place] ?? null));
  const runs = slots.filter((run) => run !== null);
  const names = orderNames(runs.flatMap((run) => run.names ?? []));
  const metrics = metricsShown(wanted.metrics, names);
  const charts = slots.map((run) => useRunChart(run, metrics));
  const compared = runs.flatMap(({ reference, found, events }, place): JobCompared[] => {
    const chart = charts[place]?.value ?? null;
    const without = comparePath({ ...wanted, jobs: wanted.jobs.filter((job) => job !== reference) });
    return found.value ? [{ job: found.value, place, chart, events, without }] : [];
  });
  const drawn = compared.flatMap(({ chart, ...one }): RunDrawn[] =>
    chart && Object.keys(chart.series).length > 0 ? [{ ...one, chart }] : [],
  );
  const titles = runs.map((run) => run.found.value?.name ?? run.reference).join(" and ");
  useEffect(() => {
    document.title = `Compare ${titles || "jobs"} · Rubato`;
  }, [titles]);

  const stale = [...runs.map((run) => run.found), ...charts].find((one) => one.error && one.readAt !== null);
  const unread = charts.find((chart) => chart.error && !chart.value);
  const isReading = runs.some(
    ({ found, names: known }, place) =>
      !found.error && (known === null || (metrics.length > 0 && charts[place]?.isLoading)),
  );
  const choose = (choice: Choice) =>
    restate(comparePath({ ...choice, jobs: wanted.jobs, metrics: [...choice.metrics] }));
  return (
    <main class="page compare">
      {stale && <StaleNote of={stale} now={now} />}
      <div class="page-head">
        <a class="icon-button" href="/" aria-label="All jobs" title="All jobs">
          <Icon name="back" />
        </a>
        <Heading>Compare jobs</Heading>
      </div>
      {runs
        .filter((run) => run.found.error && !run.found.value)
        .map((run) => (
          <NotFound key={run.reference} run={run} wanted={wanted} />
        ))}
      {runs.some((run) => run.found.value) && (
        <>
          {unread?.error ? (
            <Unread error={unread.error} onRetry={unread.reload} />
          ) : (
            <RunsBoard
              runs={drawn}
              names={orderNames([...names, ...metrics])}
              choice={{ ...wanted, metrics: new Set(metrics), attempts: [] }}
              theme={theme}
              isLoading={isReading}
              onChoice={choose}
            />
          )}
          <CompareTable jobs={compared} metrics={metrics} now={stale?.readAt ?? now} />
        </>
      )}
      {runs.length > 0 && runs.every((run) => run.found.isLoading) && <LoadingRuns />}
      {runs.length < MOST_COMPARED && (
        <PickJob wanted={wanted} known={compared.map(({ job }) => job.id)} now={now} />
      )}
    </main>
  );
}

function NotFound({ run, wanted }: { run: Run; wanted: Comparison }) {
  const others = wanted.jobs.filter((job) => job !== run.reference);
  return (
    <div class="card compare-missing" role="alert" data-missing={run.reference}>
      <p>
        <strong>Cannot show {run.reference}.</strong> {run.found.error?.message}
      </p>
      <button type="button" class="button small" onClick={run.found.reload}>
        Try again
      </button>
      <a class="button small" href={comparePath({ ...wanted, jobs: others })}>
        Without it
      </a>
    </div>
  );
}

function LoadingRuns() {
  return (
    <div class="loading" role="status" aria-label="Loading the jobs">
      <i class="bone bone-board" />
      <i class="bone bone-tiles" />
    </div>
  );
}
