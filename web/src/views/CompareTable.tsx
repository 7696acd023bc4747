import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { Stroke } from "../charts/Lane";
import { styleOf } from "../charts/lines";
import { Icon } from "../parts/Icon";
import { StatusChip } from "../parts/StatusChip";
import { Wide } from "../parts/Wide";
import { jobPath } from "../router";
import { digestNote, readingOf, specDifferences } from "../state/compare";
import { durationOf } from "../state/job";
import { endOf, GOODPUT_MEANS, phasesOf, useOf } from "../state/story";
import { formatCount, formatDuration, formatShare, formatValue } from "../text/format";
import { isFinal, type Job, type JobEvent, type MetricChart } from "../wire";
import { WorkersFigure } from "./JobsTable";

export interface JobCompared {
  job: Job;
  /** Its place among those compared, which gives it its colour. */
  place: number;
  chart: MetricChart | null;
  events: readonly JobEvent[] | null;
  /** The address of the comparison without it. */
  without: string;
}

interface CompareTableProps {
  jobs: readonly JobCompared[];
  metrics: readonly string[];
  now: number;
}

/** One column a job: how it stands, and where its spec is not as that of the others. */
export function CompareTable({ jobs, metrics, now }: CompareTableProps) {
  const each = (read: (one: JobCompared) => ComponentChildren) => jobs.map(read);
  return (
    <Wide label="What differs" isCard>
      <table class="compare-table">
        <thead>
          <tr>
            <th scope="col">
              <span class="hidden">What</span>
            </th>
            {each((one) => (
              <JobHead key={one.job.id} {...one} />
            ))}
          </tr>
        </thead>
        <tbody>
          <Row name="Status" cells={each(({ job }) => <StatusChip job={job} />)} />
          <Row name="Steps" cells={each(({ job }) => stepsOf(job))} />
          {metrics.map((name) => (
            <Row
              key={name}
              name={<MetricHead name={name} />}
              cells={each((one) => <Reading name={name} {...one} />)}
            />
          ))}
          <Row name="Workers" cells={each(({ job }) => <WorkersFigure job={job} />)} />
          <Row name="Samples / s" cells={each(({ job }) => formatValue(job.metrics.samples_per_second))} />
          <Row name="Time since its start" cells={each(({ job }) => tookOf(job, now))} />
          <Row name="Goodput" means={GOODPUT_MEANS} cells={each((one) => goodputOf(one, now))} />
          <Row
            name={<DigestHead jobs={jobs} />}
            means={DIGEST_MEANS}
            cells={each(({ job }) => digestOf(job))}
          />
          <Row name="Scalings, restarts" cells={each(({ job }) => `${job.scalings}, ${job.restarts}`)} />
        </tbody>
        {jobs.length > 1 && <SpecRows jobs={jobs} />}
      </table>
    </Wide>
  );
}

function JobHead({ job, place, without }: JobCompared) {
  return (
    <th scope="col">
      <span class="compare-job">
        <Stroke line={styleOf(place)} />
        <a href={jobPath(job.id)}>{job.name}</a>
        <a class="icon-button" href={without} aria-label={`Compare without ${job.name}`} title="Without it">
          <Icon name="cross" />
        </a>
      </span>
    </th>
  );
}

interface RowProps {
  name: ComponentChildren;
  means?: string;
  cells: ComponentChildren[];
}

function Row({ name, means, cells }: RowProps) {
  return (
    <tr>
      <th scope="row" title={means}>
        {name}
      </th>
      {cells.map((cell, index) => (
        <td key={index}>{cell}</td>
      ))}
    </tr>
  );
}

/** The charts tell the smoothed one. */
function MetricHead({ name }: { name: string }) {
  return (
    <>
      {name}
      <span class="soft compare-note">latest step, then least to greatest</span>
    </>
  );
}

/** The newest value, and between which it lay. */
function Reading({ job, chart, name }: JobCompared & { name: string }) {
  const { newest, least, greatest } = readingOf(job, chart, name);
  return (
    <>
      {formatValue(newest)}
      {least !== null && greatest !== null && (
        <span class="soft compare-note">
          {formatValue(least)} to {formatValue(greatest)}
        </span>
      )}
    </>
  );
}

const DIGEST_MEANS = "SHA-256 over parameters, buffers and optimizer state at the end";

function DigestHead({ jobs }: { jobs: readonly JobCompared[] }) {
  const note = digestNote(jobs.map(({ job }) => job.result?.digest ?? null));
  return (
    <>
      Result digest
      {note && (
        <span class={`compare-note digest-note${note.startsWith("equal") ? " good" : ""}`}>{note}</span>
      )}
    </>
  );
}

function digestOf({ result }: Job): ComponentChildren {
  return result?.digest ? <code title={result.digest}>{result.digest.slice(0, 12)}…</code> : "–";
}

/** Specs do not change but by hand: they are compared anew with other jobs only. */
function SpecRows({ jobs }: { jobs: readonly JobCompared[] }) {
  const differences = useMemo(
    () => specDifferences(jobs.map(({ job }) => job.spec)),
    jobs.map(({ job }) => JSON.stringify(job.spec)),
  );
  return (
    <tbody>
      <tr class="compare-part">
        <th scope="rowgroup" colSpan={jobs.length + 1}>
          {differences.length > 0 ? "Where the specs differ" : "The specs differ in nothing but the name"}
        </th>
      </tr>
      {differences.map(({ path, values }) => (
        <Row
          key={path}
          name={<code>{path}</code>}
          cells={values.map((value) =>
            value === undefined ? (
              "–"
            ) : (
              <code>{typeof value === "string" ? value : JSON.stringify(value)}</code>
            ),
          )}
        />
      ))}
    </tbody>
  );
}

function stepsOf(job: Job): string {
  const step = formatCount(job.step);
  return job.total_steps === null ? step : `${step} / ${formatCount(job.total_steps)}`;
}

function tookOf(job: Job, now: number): string {
  const seconds = durationOf(job, now);
  if (seconds === null) return "–";
  return isFinal(job.status) ? formatDuration(seconds) : `${formatDuration(seconds)} so far`;
}

function goodputOf({ job, events }: JobCompared, now: number): string {
  if (!events) return "–";
  const { goodput, lost } = useOf(phasesOf(job, events, endOf(job, events, now)));
  return goodput === null ? "–" : `${formatShare(goodput)}, ${formatDuration(lost)} lost`;
}
