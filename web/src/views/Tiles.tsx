import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { Copy } from "../parts/Copy";
import { lastPause } from "../state/events";
import { paceOf } from "../state/job";
import { timeLeft } from "../state/jobs";
import { formatCount, formatDuration, formatValue } from "../text/format";
import { isFinal, type Job, type JobEvent, type MetricRow } from "../wire";

interface TilesProps {
  job: Job;
  rows: readonly MetricRow[];
  events: readonly JobEvent[];
}

/** The figures one looks for first. */
export function Tiles({ job, rows, events }: TilesProps) {
  const pace = useMemo(() => paceOf(rows), [rows]);
  const pause = useMemo(() => lastPause(events), [events]);
  const left = timeLeft(job, pace);
  const isOver = isFinal(job.status);
  return (
    <dl class="tiles">
      <Tile
        name="Step"
        note={job.total_steps === null ? "total not known yet" : `of ${formatCount(job.total_steps)}`}
      >
        {formatCount(job.step)}
      </Tile>
      {isOver ? (
        <Tile name="Took" note="from first start to end">
          {durationOf(job)}
        </Tile>
      ) : (
        <Tile name="Time left" note={pace === undefined ? "" : `${formatDuration(pace)} a step`}>
          {left === null ? "–" : formatDuration(left)}
        </Tile>
      )}
      <Tile name="Loss">{formatValue(job.metrics.loss)}</Tile>
      <Tile name="Samples / s" note={isOver ? "at the end" : ""}>
        {formatValue(job.metrics.samples_per_second)}
      </Tile>
      <Tile name="Generation" note={`attempt ${job.attempt}`}>
        {job.generation}
      </Tile>
      <Tile name="Scalings" note={`${job.restarts} ${job.restarts === 1 ? "restart" : "restarts"}`}>
        {job.scalings}
      </Tile>
      <Tile
        name="Last pause"
        note={pause?.event.data.step !== undefined ? `at step ${String(pause?.event.data.step)}` : ""}
      >
        {pause ? formatDuration(pause.seconds) : "–"}
      </Tile>
      {job.result && (
        <Tile name="Digest" note="SHA-256 of parameters, buffers and optimizer state" isWide>
          <code class="digest" title={job.result.digest}>
            {job.result.digest}
          </code>
          <Copy text={job.result.digest} label="Copy the digest" />
        </Tile>
      )}
    </dl>
  );
}

function durationOf(job: Job): string {
  if (!job.started_at || !job.finished_at) return "–";
  return formatDuration((Date.parse(job.finished_at) - Date.parse(job.started_at)) / 1000);
}

interface TileProps {
  name: string;
  note?: string;
  isWide?: boolean;
  children: ComponentChildren;
}

function Tile({ name, note, isWide, children }: TileProps) {
  return (
    <div class={isWide ? "tile wide" : "tile"}>
      <dt>{name}</dt>
      <dd>{children}</dd>
      <dd class="tile-note">{note}</dd>
    </div>
  );
}
