import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { PHASE_NAMES } from "../charts/Timeline";
import { Copy } from "../parts/Copy";
import { lastPause } from "../state/events";
import { durationOf, paceOf } from "../state/job";
import { timeLeft } from "../state/jobs";
import { endOf, GOODPUT_MEANS, phasesOf, useOf } from "../state/story";
import { formatCount, formatDuration, formatShare, formatValue } from "../text/format";
import { isFinal, type Job, type JobEvent, type MetricRow } from "../wire";

interface TilesProps {
  job: Job;
  rows: readonly MetricRow[];
  events: readonly JobEvent[];
  now: number;
}

/** The figures one looks for first. */
export function Tiles({ job, rows, events, now }: TilesProps) {
  const pace = useMemo(() => paceOf(rows), [rows]);
  const pause = useMemo(() => lastPause(events), [events]);
  const left = timeLeft(job, pace);
  const isOver = isFinal(job.status);
  const took = durationOf(job, now);
  return (
    <>
      <dl class="tiles">
        <Tile
          name="Step"
          note={job.total_steps === null ? "total unknown" : `of ${formatCount(job.total_steps)}`}
        >
          {formatCount(job.step)}
        </Tile>
        {isOver ? (
          <Tile name="Took" note="since its first start">
            {took === null ? "–" : formatDuration(took)}
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
        <GoodputTile job={job} events={events} now={now} />
        <Tile name="Generation" note={`attempt ${job.attempt}`}>
          {job.generation}
        </Tile>
        <Tile name="Scalings" note={`${job.restarts} ${job.restarts === 1 ? "restart" : "restarts"}`}>
          {job.scalings}
        </Tile>
        <Tile
          name="Last pause"
          note={pause && pause.step !== null ? `at step ${formatCount(pause.step)}` : ""}
        >
          {pause ? formatDuration(pause.seconds) : "–"}
        </Tile>
      </dl>
      {job.result?.digest && <Digest digest={job.result.digest} />}
    </>
  );
}

/** Which share of its time the job trained, and where the rest went. */
function GoodputTile({ job, events, now }: Omit<TilesProps, "rows">) {
  const end = endOf(job, events, now);
  const use = useMemo(() => useOf(phasesOf(job, events, end)), [job, events, end]);
  const causes = use.causes.map(([phase, seconds]) => `${PHASE_NAMES[phase]} ${formatDuration(seconds)}`);
  return (
    <Tile
      name="Goodput"
      note={use.goodput === null ? "" : `${formatDuration(use.lost)} lost`}
      means={[GOODPUT_MEANS, causes.length > 0 && `Here: ${causes.join(", ")}.`].filter(Boolean).join(" ")}
    >
      {use.goodput === null ? "–" : formatShare(use.goodput)}
    </Tile>
  );
}

/** What two runs have in common when they trained the same weights. */
function Digest({ digest }: { digest: string }) {
  return (
    <section class="card digest" aria-label="Final digest">
      <h2>Digest</h2>
      <code title={digest}>{digest}</code>
      <Copy text={digest} label="Copy the digest" />
      <p class="soft">
        SHA-256 over parameters, buffers and optimizer state. Equal digests are equal weights, bit for bit.
      </p>
    </section>
  );
}

interface TileProps {
  name: string;
  note?: string;
  /** How the figure is reckoned, where its name does not say it. */
  means?: string;
  children: ComponentChildren;
}

function Tile({ name, note, means, children }: TileProps) {
  return (
    <div class="tile" title={means}>
      <dt>{name}</dt>
      <dd>{children}</dd>
      <dd class="tile-note">{note}</dd>
      {means && (
        <dd class="tile-means">
          <details>
            <summary aria-label={`What ${name.toLowerCase()} means`}>?</summary>
            <p>{means}</p>
          </details>
        </dd>
      )}
    </div>
  );
}
