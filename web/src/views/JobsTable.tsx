import { useMemo, useState } from "preact/hooks";
import type { Point } from "../charts/spark";
import { Progress } from "../parts/Progress";
import { Prose } from "../parts/Prose";
import { Sparkline } from "../parts/Sparkline";
import { StatusChip } from "../parts/StatusChip";
import { type RowHeight, TableBlock, UNKNOWN_HEIGHT } from "../parts/TableBlock";
import { jobPath } from "../router";
import { blocksFromEnd } from "../state/blocks";
import { MOST_COMPARED } from "../state/compare";
import { describeJob } from "../state/events";
import { stepsPerSecond, timeLeft } from "../state/jobs";
import {
  formatAgo,
  formatCoarse,
  formatCount,
  formatDuration,
  formatTime,
  formatValue,
  plural,
} from "../text/format";
import { isFinal, type Job } from "../wire";
import { RowActions } from "./JobActions";

const HEAD_ROWS = 1;
const COLUMNS = 9;
const BLOCK_ROWS = 40;

interface JobsTableProps {
  jobs: Job[];
  pace: ReadonlyMap<string, number>;
  losses: ReadonlyMap<string, readonly Point[]>;
  now: number;
  /** Ids of those that are to be compared. */
  chosen: ReadonlySet<string>;
  onChoose: (id: string) => void;
}

export function JobsTable({ jobs, pace, losses, now, chosen, onChoose }: JobsTableProps) {
  const isFull = chosen.size >= MOST_COMPARED;
  const blocks = useMemo(() => blocksFromEnd(jobs, BLOCK_ROWS), [jobs]);
  const [usual, setUsual] = useState<RowHeight>(UNKNOWN_HEIGHT);
  const noteHeight = (height: RowHeight) =>
    setUsual((known) => (known.tableWidth === height.tableWidth ? known : height));
  return (
    <table class="card jobs" aria-rowcount={HEAD_ROWS + jobs.length}>
      <thead>
        <tr>
          <th scope="col" class="job-choice">
            <span class="hidden">Compare</span>
          </th>
          <th scope="col">Job</th>
          <th scope="col">Status</th>
          <th scope="col">Progress</th>
          <th scope="col">Workers</th>
          <th scope="col" class="number">
            Loss
          </th>
          <th scope="col" class="number">
            Steps / s
          </th>
          <th scope="col" class="number">
            Age
          </th>
          <th scope="col">
            <span class="hidden">Actions</span>
          </th>
        </tr>
      </thead>
      {blocks.map(({ begin, items }) => (
        <TableBlock
          key={items.at(-1)?.id}
          rows={items.length}
          columns={COLUMNS}
          usual={usual}
          onMeasure={noteHeight}
          draw={() =>
            items.map((job, place) => (
              <JobRow
                key={job.id}
                rowIndex={HEAD_ROWS + begin + place + 1}
                job={job}
                pace={pace.get(job.id)}
                losses={losses.get(job.id) ?? NO_LOSSES}
                now={now}
                isChosen={chosen.has(job.id)}
                mayChoose={!isFull || chosen.has(job.id)}
                onChoose={onChoose}
              />
            ))
          }
        />
      ))}
    </table>
  );
}

const NO_LOSSES: readonly Point[] = [];

interface JobRowProps {
  /** Its place in the whole table, of which only a part is drawn; from 1, with the head. */
  rowIndex: number;
  job: Job;
  pace: number | undefined;
  losses: readonly Point[];
  now: number;
  isChosen: boolean;
  mayChoose: boolean;
  onChoose: (id: string) => void;
}

function JobRow(props: JobRowProps) {
  const { rowIndex, job, pace, losses, isChosen, mayChoose, onChoose } = props;
  const age = formatAgo(job.created_at, props.now);
  // The clock ticks for all rows, a thousand maybe; most of them read the same as a second ago.
  return useMemo(
    () => drawRow(props, age),
    [rowIndex, job, pace, losses, age, isChosen, mayChoose, onChoose],
  );
}

function drawRow({ rowIndex, job, pace, losses, isChosen, mayChoose, onChoose }: JobRowProps, age: string) {
  const message = describeJob(job);
  return (
    <tr data-job={job.id} aria-rowindex={rowIndex}>
      <td class="job-choice">
        <input
          type="checkbox"
          checked={isChosen}
          disabled={!mayChoose}
          onChange={() => onChoose(job.id)}
          aria-label={`Compare ${job.name}`}
          title={mayChoose ? "Compare" : `No more than ${MOST_COMPARED} at once`}
        />
      </td>
      <th scope="row" class="job-name" title={message}>
        <a href={jobPath(job.id)}>{job.name}</a>
        <span class="soft job-message">
          <Prose text={message} />
        </span>
      </th>
      <td data-label="Status">
        <StatusChip job={job} />
      </td>
      <td data-label="Progress" class="job-progress">
        <Progress job={job} label={`Progress of ${job.name}`} />
        <span class="soft">
          {formatCount(job.step)}
          {job.total_steps !== null && ` / ${formatCount(job.total_steps)}`}
          {leftOf(job, pace)}
        </span>
      </td>
      <td data-label="Workers" class="job-workers">
        <WorkersFigure job={job} />
      </td>
      <td data-label="Loss" class="number job-loss">
        {formatValue(job.metrics.loss)}
        <Sparkline course={losses} name="Loss" />
      </td>
      <td data-label="Steps / s" class="number">
        {formatValue(stepsPerSecond(job, pace))}
        {job.status === "running" && typeof job.metrics.samples_per_second === "number" && (
          <span class="soft job-counts">{formatValue(job.metrics.samples_per_second)} samples</span>
        )}
      </td>
      <td data-label="Age" class="number">
        <span title={formatTime(job.created_at, 0)}>{age}</span>
        <span class="soft job-counts">{changesOf(job)}</span>
      </td>
      <td class="job-actions">
        <RowActions job={job} />
      </td>
    </tr>
  );
}

/** Observed of desired, and between which bounds: "2/4 (1–8)". */
export function WorkersFigure({ job }: { job: Job }) {
  const text = isFinal(job.status)
    ? plural(job.desired_workers, "worker")
    : `${job.workers}/${job.desired_workers} workers, between ${job.min_workers} and ${job.max_workers}`;
  return (
    <span aria-label={text} role="img">
      {isFinal(job.status) ? job.desired_workers : `${job.workers}/${job.desired_workers}`}{" "}
      <span class="soft">
        ({job.min_workers}–{job.max_workers})
      </span>
    </span>
  );
}

function leftOf(job: Job, pace: number | undefined): string {
  const seconds = timeLeft(job, pace);
  if (seconds !== null) return ` · ${formatCoarse(seconds)} left`;
  if (!job.started_at || !job.finished_at) return "";
  return ` · ${formatDuration((Date.parse(job.finished_at) - Date.parse(job.started_at)) / 1000)}`;
}

function changesOf(job: Job): string {
  const parts = [
    job.scalings > 0 && plural(job.scalings, "scaling"),
    job.restarts > 0 && plural(job.restarts, "restart"),
  ];
  return parts.filter(Boolean).join(" · ");
}
