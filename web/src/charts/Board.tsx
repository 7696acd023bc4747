import { useMemo, useRef, useState } from "preact/hooks";
import { useResource } from "../live/hooks";
import { useWidth } from "../parts/useWidth";
import { metricsShown } from "../state/compare";
import { formatCount, formatDuration } from "../text/format";
import type { Job, JobEvent, MetricChart, MetricRow } from "../wire";
import { attemptsOf, BoardBar, type Choice } from "./BoardBar";
import {
  axesOf,
  batchOf,
  buildLane,
  extentOf,
  metricNames,
  orderRows,
  originOf,
  type Range,
  TREND_ROWS,
  xOf,
} from "./data";
import { CHART_POINTS, fillMembership, rowsOfChart, thinnedSteps, withDetail } from "./history";
import { Lane } from "./Lane";
import { isPositive } from "./lines";
import { MarkerRail } from "./MarkerRail";
import { markersOf, placeMarkers } from "./markers";
import { AXIS_PX, PAD_PX } from "./options";
import { buildSplit, LAYERS } from "./split";

interface BoardProps {
  job: Job;
  rows: readonly MetricRow[];
  events: readonly JobEvent[];
  theme: string;
  /** The past of a long job is on its way. */
  isLoading: boolean;
}

const METRIC_COLOURS = ["chart-loss", "chart-second", "chart-third"];

/** The charts of a job, once there is a step to draw. */
export function Board(props: BoardProps) {
  if (props.rows.length > 0) return <Score {...props} />;
  return (
    <section class="card board-empty" aria-label="Charts" aria-busy={props.isLoading}>
      <p class="soft">
        {props.isLoading
          ? "Reading what was measured so far…"
          : "No step has been committed yet. The charts begin with the first one."}
      </p>
    </section>
  );
}

const FIRST_CHOICE: Choice = {
  axis: "step",
  isSmooth: true,
  isLog: false,
  metrics: new Set(),
  attempt: null,
};

/** Metrics, throughput, a step's time and worker count over one shared axis, with every change of membership marked. */
function Score({ job, rows, events, theme }: BoardProps) {
  const [choice, setChoice] = useState<Choice>(FIRST_CHOICE);
  const [zoom, setZoom] = useState<Range | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const { axis } = choice;
  const batch = batchOf(job);

  const filled = useMemo(() => fillMembership(rows, events), [rows, events]);
  const { attempt } = choice;
  const origin = useMemo(() => originOf(ofAttempt(filled, attempt), axis), [filled, axis, attempt]);
  const detailed = useDetail(job, events, filled, zoom, (row) => xOf(row, axis, origin, batch));
  const ordered = useMemo(() => orderRows(ofAttempt(detailed, attempt), axis), [detailed, axis, attempt]);
  const whole = extentOf(ordered, axis, origin, batch);
  const range = zoom ?? whole;
  const names = useMemo(() => metricNames(rows), [rows]);
  const attempts = useMemo(() => attemptsOf(filled), [filled]);
  const shown = metricsShown(
    names.filter((name) => choice.metrics.has(name)),
    names,
  );
  const lanes = useMemo(() => {
    const maxPoints = Math.max(200, width * 2);
    const hasTrend = choice.isSmooth && ordered.length > TREND_ROWS;
    const how = { axis, origin, batch, range, maxPoints, hasTrend };
    return {
      metrics: shown.map((name) => ({ name, data: buildLane(ordered, (row) => row.values[name], how) })),
      speed: buildLane(ordered, (row) => row.values.samples_per_second, { ...how, isTrendByWorkers: true }),
      split: buildSplit(ordered, how),
      workers: buildLane(ordered, (row) => row.workers, { ...how, hasTrend: false }),
    };
  }, [ordered, axis, origin, batch, range[0], range[1], width, shown.join(), choice.isSmooth]);
  const placed = useMemo(
    () => placeMarkers(markersOf(events, axis, origin, batch), range, Math.max(1, width - AXIS_PX - PAD_PX)),
    [events, axis, origin, batch, range[0], range[1], width],
  );

  const choose = (next: Choice) => {
    if (next.axis !== axis || next.attempt !== attempt) setZoom(null);
    setChoice(next);
  };
  const shared = { axis, range, whole, width, theme, onZoom: setZoom };
  const most = Math.max(job.desired_workers, 1, ...lanes.workers.y.map((count) => count ?? 0));
  return (
    <section class="card board" aria-label="Charts">
      <BoardBar
        choice={{ ...choice, metrics: new Set(shown) }}
        axes={axesOf([job])}
        names={names}
        attempts={attempts}
        onChoice={choose}
        onShowAll={zoom && (() => setZoom(null))}
      />
      <div
        class={`board-frame rail-rows-${Math.max(0, ...placed.map((place) => place.row + 1))}`}
        ref={frame}
      >
        <MarkerRail placed={placed} />
        {lanes.metrics.map(({ name, data }, index) => (
          <Lane
            key={name}
            {...shared}
            title={name}
            colour={METRIC_COLOURS[index % METRIC_COLOURS.length] ?? "chart-loss"}
            data={data}
            height={index === 0 ? 190 : 130}
            hasAxis={false}
            isLog={choice.isLog && isPositive(data)}
          />
        ))}
        <Lane
          {...shared}
          title="samples / s"
          colour="chart-speed"
          data={lanes.speed}
          height={120}
          hasAxis={false}
          fromZero
        />
        {lanes.split && (
          <Lane
            {...shared}
            title="step time"
            colour="chart-speed"
            layers={LAYERS}
            data={lanes.split}
            height={110}
            hasAxis={false}
            fromZero
            format={(value) => (typeof value === "number" ? formatDuration(value) : "–")}
          />
        )}
        <Lane
          {...shared}
          title="workers"
          colour="chart-workers"
          data={lanes.workers}
          height={92}
          hasAxis
          isStepped
          wholeTo={most}
          format={(value) => (typeof value === "number" ? formatCount(value) : "–")}
        />
      </div>
    </section>
  );
}

function ofAttempt(rows: readonly MetricRow[], attempt: number | null): readonly MetricRow[] {
  return attempt === null ? rows : rows.filter((row) => row.attempt === attempt);
}

/** Where the reader zooms into what was thinned out, the service is asked for more of it. */
function useDetail(
  job: Job,
  events: readonly JobEvent[],
  rows: readonly MetricRow[],
  zoom: Range | null,
  place: (row: MetricRow) => number,
): readonly MetricRow[] {
  const steps = zoom && thinnedSteps(rows, (row) => place(row) >= zoom[0] && place(row) <= zoom[1]);
  const query = steps && `max_points=${CHART_POINTS}&start=${steps[0]}&end=${steps[1]}`;
  const { value } = useResource<MetricChart>(query && `/jobs/${job.id}/metrics/chart?${query}`);
  const finer = useMemo(() => value && fillMembership(rowsOfChart(value), events), [value, events]);
  return useMemo(() => (finer ? withDetail(rows, finer) : rows), [rows, finer]);
}
