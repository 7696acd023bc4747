import { useMemo, useRef, useState } from "preact/hooks";
import { useWidth } from "../parts/useWidth";
import { generationStarts, type LaneSpan, lanesOf, type WorkerLane } from "../state/lanes";
import {
  endOf,
  type Moment,
  type MomentKind,
  momentsOf,
  type Phase,
  phasesOf,
  type Span,
} from "../state/story";
import { formatDuration, formatElapsed, formatTime, plural } from "../text/format";
import type { Job, JobEvent } from "../wire";
import { isPlain } from "./keys";
import { AXIS_PX, PAD_PX } from "./options";
import {
  boxes,
  laneBoxes,
  laneHeight,
  momentsNear,
  pxOf,
  type Strip,
  spanAt,
  ticksOf,
  timeAt,
  zoomed,
} from "./strip";

export const PHASE_NAMES: Record<Phase, string> = {
  queued: "queued",
  starting: "starting",
  training: "training",
  scaling: "scaling",
  repairing: "recovering",
  redone: "trained again later",
  saving: "held up by a checkpoint",
  paused: "paused",
  stopping: "stopping",
};
const PHASES = Object.keys(PHASE_NAMES) as Phase[];
const STATES: LaneSpan["state"][] = ["starting", "ready", "training", "leaving"];
const MOMENT_NAMES: Record<MomentKind, string> = {
  scaling: "change of workers",
  failure: "failure",
  checkpoint: "checkpoint",
  attempt: "new attempt",
};
const MOMENTS = Object.keys(MOMENT_NAMES) as MomentKind[];
const PHASES_PX = 40;
const AXIS_HEIGHT_PX = 22;
/** A narrower part of a worker's life is not told apart, and has no entry in the legend. */
const LEAST_SEEN_PX = 1;
const ZOOMS: [name: string, seconds: number | null][] = [
  ["All", null],
  ["1 h", 3600],
  ["5 min", 300],
];

/** Where the reader looks: a time, and a worker's lane or (-1) the phases. */
interface Look {
  at: number;
  row: number;
}

interface TimelineProps {
  job: Job;
  events: readonly JobEvent[];
  now: number;
}

/** What the job did with its time, and the life of each of its workers, over one axis of time. */
export function Timeline({ job, events, now }: TimelineProps) {
  const end = endOf(job, events, now);
  const spans = useMemo(() => phasesOf(job, events, end), [job, events, end]);
  return spans.length > 0 ? <Drawn events={events} spans={spans} end={end} now={now} /> : null;
}

type DrawnProps = Omit<TimelineProps, "job"> & { spans: readonly Span[]; end: number };

function Drawn({ events, spans, end, now }: DrawnProps) {
  const frame = useRef<HTMLDivElement>(null);
  const width = Math.max(0, useWidth(frame) - AXIS_PX - PAD_PX);
  const [last, setLast] = useState<number | null>(null);
  const [look, setLook] = useState<Look | null>(null);
  const lanes = useMemo(() => lanesOf(events, end), [events, end]);
  const moments = useMemo(() => momentsOf(events), [events]);
  const starts = useMemo(() => generationStarts(events), [events]);
  const [from, to] = zoomed(spans, last);
  const beginning = spans[0]?.from ?? from;
  const whole = (to - beginning) / 1000;
  const zooms = ZOOMS.filter(([, seconds]) => seconds === null || whole > seconds);
  const strip: Strip = { from, to, width };
  const shown = useMemo(() => lanes.filter((lane) => endOfLane(lane) >= from), [lanes, from]);

  const onKeyDown = (event: KeyboardEvent) => {
    if (!isPlain(event)) return;
    const next = moveLook(look ?? { at: to, row: -1 }, event.key, strip, shown.length);
    if (!next) return;
    event.preventDefault();
    setLook(next);
  };
  return (
    <section class="card timeline" aria-labelledby="timeline-title">
      <header class="card-head">
        <h2 id="timeline-title">Timeline</h2>
        <span class="soft">{tellWorkers(lanes.length, shown.length)}</span>
        <span class="grow" />
        {zooms.length > 1 && (
          <fieldset class="segments" aria-label="Part of the timeline">
            {zooms.map(([name, seconds]) => (
              <button
                type="button"
                key={name}
                aria-pressed={last === seconds}
                onClick={() => setLast(seconds)}
              >
                {name}
              </button>
            ))}
          </fieldset>
        )}
      </header>
      <div
        class="timeline-frame"
        ref={frame}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a picture that is read by arrow keys must have the focus
        tabIndex={0}
        role="application"
        aria-label="Timeline. Arrow keys move through time and workers"
        aria-describedby="timeline-told"
        onKeyDown={onKeyDown}
        onPointerLeave={() => setLook(null)}
        onBlur={() => setLook(null)}
      >
        {width > 0 && (
          <>
            <PhaseStrip strip={strip} spans={spans} moments={moments} look={look} onLook={setLook} />
            {shown.length > 0 && (
              <WorkerStrips strip={strip} lanes={shown} starts={starts} look={look} onLook={setLook} />
            )}
            <TimeAxis strip={strip} beginning={beginning} />
          </>
        )}
      </div>
      <output class="timeline-told" id="timeline-told">
        {look ? (
          tell(look, strip, spans, shown, moments, now)
        ) : (
          <Legend
            spans={spans.filter((span) => span.to > from)}
            lanes={shown}
            strip={strip}
            moments={moments.filter((moment) => moment.at >= from)}
          />
        )}
      </output>
    </section>
  );
}

function tellWorkers(all: number, shown: number): string {
  if (all === 0) return "";
  return `${plural(all, "worker")} so far${shown < all ? `, ${shown} of them here` : ""}`;
}

function endOfLane(lane: WorkerLane): number {
  return lane.spans.at(-1)?.to ?? 0;
}

/** One arrow key further: a hundredth of the time, or a lane. */
function moveLook(look: Look, key: string, strip: Strip, rows: number): Look | null {
  const step = (strip.to - strip.from) / 100;
  const at = (time: number) => Math.min(strip.to, Math.max(strip.from, time));
  const row = (next: number) => Math.min(rows - 1, Math.max(-1, next));
  switch (key) {
    case "ArrowLeft":
      return { ...look, at: at(look.at - step) };
    case "ArrowRight":
      return { ...look, at: at(look.at + step) };
    case "Home":
      return { ...look, at: strip.from };
    case "End":
      return { ...look, at: strip.to };
    case "ArrowUp":
      return { ...look, row: row(look.row - 1) };
    case "ArrowDown":
      return { ...look, row: row(look.row + 1) };
    default:
      return null;
  }
}

function tell(
  look: Look,
  strip: Strip,
  spans: readonly Span[],
  lanes: readonly WorkerLane[],
  moments: readonly Moment[],
  now: number,
): string {
  const lane = lanes[look.row];
  if (lane) return tellLane(lane, look.at, now);
  const near = momentsNear(strip, moments, pxOf(strip, look.at));
  if (near.length > 0) {
    const rest = near.length > 2 ? ` And ${near.length - 2} more there.` : "";
    const told = near.slice(0, 2).map((one) => `${clock(one.at, now)} ${one.text.replace(/\.$/, "")}.`);
    return told.join(" ") + rest;
  }
  const span = spanAt(spans, look.at);
  return span ? `${clock(look.at, now)} ${PHASE_NAMES[span.phase]}, ${lasting(span)}` : "";
}

function tellLane(lane: WorkerLane, at: number, now: number): string {
  const name = lane.node ? `${lane.workerId} on ${lane.node}` : lane.workerId;
  const isPast = lane.end !== null && at >= endOfLane(lane);
  const span = spanAt(lane.spans, at);
  if (isPast) return `${clock(endOfLane(lane), now)} ${lane.endText || `${name} ended with the job`}`;
  if (!span) return `${name}: not there yet at ${clock(at, now)}`;
  if (span.rank === null) return `${name}: ${span.state}, ${lasting(span)}`;
  const [first, last] = span.generations ?? [0, 0];
  const generations = first === last ? `generation ${first}` : `generations ${first} to ${last}`;
  return `${name}: training as rank ${span.rank}, ${generations}, ${lasting(span)}`;
}

function lasting(span: { from: number; to: number }): string {
  return formatDuration((span.to - span.from) / 1000);
}

function clock(at: number, now: number): string {
  return formatTime(new Date(at).toISOString(), now);
}

interface StripProps {
  strip: Strip;
  look: Look | null;
  onLook: (look: Look) => void;
}

/** Told by the pointer's place, so that no box needs a handler of its own. */
function lookAt(event: PointerEvent, strip: Strip, row: (y: number) => number): Look {
  const bounds = (event.currentTarget as Element).getBoundingClientRect();
  return { at: timeAt(strip, event.clientX - bounds.left), row: row(event.clientY - bounds.top) };
}

function PhaseStrip(props: StripProps & { spans: readonly Span[]; moments: readonly Moment[] }) {
  const { strip, spans, moments, look, onLook } = props;
  const seen = spans.filter((span) => span.to > strip.from);
  const near = moments.filter((moment) => moment.at >= strip.from);
  return (
    <div class="timeline-row">
      <span class="timeline-name">job</span>
      <svg
        width={strip.width}
        height={PHASES_PX}
        aria-hidden="true"
        onPointerMove={(event) => onLook(lookAt(event, strip, () => -1))}
      >
        {/* The training first: what interrupts it is drawn over it, and is seen however short it was. */}
        {[...PHASES]
          .sort((a, b) => Number(b === "training") - Number(a === "training"))
          .map((phase) => (
            <path
              key={phase}
              class={`phase-${phase}`}
              d={boxes(
                strip,
                seen.filter((span) => span.phase === phase),
                18,
                16,
              )}
            />
          ))}
        {MOMENTS.map((kind) => (
          <path
            key={kind}
            class={`moment-${kind}`}
            d={near
              .filter((moment) => moment.kind === kind)
              .map((moment) => glyph(kind, pxOf(strip, moment.at)))
              .join("")}
          />
        ))}
        {look && <Cursor strip={strip} at={look.at} height={PHASES_PX} />}
      </svg>
    </div>
  );
}

/** A sign above the phases: a triangle, a cross, a diamond, a bar. */
function glyph(kind: MomentKind, x: number): string {
  const at = Math.round(x * 10) / 10;
  switch (kind) {
    case "scaling":
      return `M${at - 4} 14l4 -8l4 8z`;
    case "failure":
      return `M${at - 3.5} 6.5l7 7m0 -7l-7 7`;
    case "checkpoint":
      return `M${at} 37l3 -2.5l-3 -2.5l-3 2.5z`;
    case "attempt":
      return `M${at} 3v34`;
  }
}

function WorkerStrips(props: StripProps & { lanes: readonly WorkerLane[]; starts: readonly number[] }) {
  const { strip, lanes, starts, look, onLook } = props;
  const row = laneHeight(lanes.length);
  const height = row * lanes.length;
  const dead = lanes.flatMap((lane, index) => (lane.end === "lost" ? [{ lane, index }] : []));
  const named = row >= 9 ? lanes : [];
  return (
    <div class="timeline-workers">
      <div class="timeline-row">
        <span class="timeline-names" aria-hidden="true" style={{ height: `${height}px` }}>
          {named.map((lane, index) => (
            <i
              key={`${lane.workerId}-${index}`}
              data-lane={lane.workerId}
              data-end={lane.end ?? "alive"}
              style={{ top: `${index * row}px`, lineHeight: `${row}px` }}
            >
              {lane.workerId}
            </i>
          ))}
        </span>
        <svg
          width={strip.width}
          height={height}
          aria-hidden="true"
          onPointerMove={(event) =>
            onLook(lookAt(event, strip, (y) => Math.min(lanes.length - 1, Math.max(0, Math.floor(y / row)))))
          }
        >
          {look && look.row >= 0 && (
            <rect class="lane-looked" x="0" y={look.row * row} width={strip.width} height={row} />
          )}
          {STATES.map((state) => (
            <path key={state} class={`life-${state}`} d={laneBoxes(strip, lanes, state)} />
          ))}
          <path
            class="generation-lines"
            d={starts
              .filter((at) => at >= strip.from)
              .map((at) => `M${pxOf(strip, at).toFixed(1)} 0v${height}`)
              .join("")}
          />
          <path
            class="moment-failure"
            d={dead
              .map(({ lane, index }) =>
                cross(pxOf(strip, endOfLane(lane)), (index + 0.5) * row, Math.min(3.5, row / 2)),
              )
              .join("")}
          />
          {look && <Cursor strip={strip} at={look.at} height={height} />}
        </svg>
      </div>
    </div>
  );
}

function cross(x: number, y: number, reach: number): string {
  return `M${(x - reach).toFixed(1)} ${y - reach}l${2 * reach} ${2 * reach}m0 ${-2 * reach}l${-2 * reach} ${2 * reach}`;
}

function Cursor({ strip, at, height }: { strip: Strip; at: number; height: number }) {
  const x = pxOf(strip, at);
  return <line class="timeline-cursor" x1={x} x2={x} y1="0" y2={height} />;
}

function TimeAxis({ strip, beginning }: { strip: Strip; beginning: number }) {
  return (
    <div class="timeline-row" aria-hidden="true">
      <span class="timeline-name" />
      <svg width={strip.width} height={AXIS_HEIGHT_PX} aria-hidden="true">
        {ticksOf(strip, beginning).map((seconds) => (
          <text key={seconds} x={pxOf(strip, beginning + seconds * 1000)} y="14" class="timeline-tick">
            {formatElapsed(seconds)}
          </text>
        ))}
      </svg>
    </div>
  );
}

interface LegendProps {
  spans: readonly Span[];
  lanes: readonly WorkerLane[];
  moments: readonly Moment[];
  strip: Strip;
}

/** What the colours and signs that are drawn mean. */
function Legend({ spans, lanes, moments, strip }: LegendProps) {
  const kinds = MOMENTS.filter((kind) => moments.some((moment) => moment.kind === kind));
  return (
    <>
      {coloursOf(spans, lanes, strip).map(([colour, name]) => (
        <span key={colour} class="timeline-legend">
          <svg width="12" height="10" aria-hidden="true">
            <rect width="12" height="10" rx="2" class={colour} />
          </svg>
          {name}
        </span>
      ))}
      {kinds.map((kind) => (
        <span key={kind} class="timeline-legend">
          <svg
            width="12"
            height="12"
            viewBox={kind === "checkpoint" ? "0 28 12 12" : "0 4 12 12"}
            aria-hidden="true"
          >
            <path class={`moment-${kind}`} d={glyph(kind, 6)} />
          </svg>
          {MOMENT_NAMES[kind]}
        </span>
      ))}
    </>
  );
}

/** Each colour once, though a job and its workers may share it. */
function coloursOf(
  spans: readonly Span[],
  lanes: readonly WorkerLane[],
  strip: Strip,
): [colour: string, name: string][] {
  const phases = PHASES.filter((phase) => spans.some((span) => span.phase === phase));
  const isSeen = ({ from, to }: LaneSpan) =>
    to > strip.from && pxOf(strip, to) - pxOf(strip, Math.max(from, strip.from)) >= LEAST_SEEN_PX;
  const has = (state: LaneSpan["state"]) =>
    lanes.some((lane) => lane.spans.some((span) => span.state === state && isSeen(span)));
  const isLeaving = has("leaving");
  const colours = phases.map((phase): [string, string] => [
    `phase-${phase}`,
    phase === "stopping" && isLeaving ? "stopping, or a worker leaving" : PHASE_NAMES[phase],
  ]);
  for (const state of ["starting", "training"] as const)
    if (has(state) && !phases.includes(state)) colours.push([`life-${state}`, `worker ${state}`]);
  if (has("ready")) colours.push(["life-ready", "worker warm, waiting to join"]);
  if (isLeaving && !phases.includes("stopping")) colours.push(["life-leaving", "worker leaving"]);
  return colours;
}
