import { useMemo, useRef, useState } from "preact/hooks";
import { useResource } from "../live/hooks";
import { useWidth } from "../parts/useWidth";
import { metricsShown } from "../state/compare";
import { formatCount, formatDuration, formatTick } from "../text/format";
import type { Job, JobEvent, MetricChart, MetricRow } from "../wire";
import { BoardBar, type Choice } from "./BoardBar";
import { axesOf, batchOf, metricNames, type Range, type XAxis } from "./data";
import { CHART_POINTS, fillMembership, rowsOfChart, thinnedSteps, withDetail } from "./history";
import { Lane } from "./Lane";
import { logOf, rangeOf, styleOf, type Track } from "./lines";
import { MarkerRail } from "./MarkerRail";
import { markersOf, placeMarkers } from "./markers";
import { AXIS_PX, PAD_PX } from "./options";
import { attemptsOf, buildScore, rowsWithin, tracksOf } from "./score";
import { LAYERS } from "./split";

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
  attempts: [],
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
  const known = useMemo(() => attemptsOf(filled), [filled]);
  const attempts = choice.attempts.filter((attempt) => known.includes(attempt));
  const coarse = useMemo(
    () => tracksOf(filled, attempts, axis, batch),
    [filled, attempts.join(), axis, batch],
  );
  const detailed = useDetail(job, events, filled, coarse, axis, zoom);
  const tracks = useMemo(() => {
    if (detailed === filled) return coarse;
    const finer = tracksOf(detailed, attempts, axis, batch);
    // Their time still counts from where it did, or the axis would move under the reader.
    return finer.map((track, place) => ({ ...track, origin: coarse[place]?.origin ?? track.origin }));
  }, [detailed, coarse]);
  const whole = rangeOf(tracks, axis);
  const range = zoom ?? whole;
  const names = useMemo(() => metricNames(rows), [rows]);
  const shown = metricsShown(
    names.filter((name) => choice.metrics.has(name)),
    names,
  );
  const lanes = useMemo(() => {
    const how = { axis, range, maxPoints: Math.max(200, width * 2), isSmooth: choice.isSmooth };
    return buildScore(tracks, shown, how);
  }, [tracks, range[0], range[1], width, shown.join("\n"), choice.isSmooth]);
  const isCompared = tracks.length > 1;
  const origin = tracks[0]?.origin ?? 0;
  const placed = useMemo(() => {
    // What happened to several stands at no one place of an axis that begins with each of them.
    const markers = isCompared && axis === "time" ? [] : markersOf(events, axis, origin, batch);
    return placeMarkers(markers, range, Math.max(1, width - AXIS_PX - PAD_PX));
  }, [events, axis, isCompared, origin, batch, range[0], range[1], width]);

  const choose = (next: Choice) => {
    if (next.axis !== axis || next.attempts !== choice.attempts) setZoom(null);
    setChoice(next);
  };
  const lines = attempts.map((attempt, place) => ({ name: `Attempt ${attempt}`, ...styleOf(place) }));
  const shared = {
    axis,
    range,
    whole,
    width,
    theme,
    onZoom: setZoom,
    ...(isCompared ? { lines } : {}),
  };
  const counts = [lanes.workers.y, ...(lanes.workers.lines ?? []).map((line) => line.y)].flat();
  const most = Math.max(job.desired_workers, 1, ...counts.map((count) => count ?? 0));
  return (
    <section class="card board" aria-label="Charts">
      <BoardBar
        choice={{ ...choice, metrics: new Set(shown), attempts }}
        axes={axesOf([job])}
        names={names}
        attempts={known}
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
            {...logOf(choice.isLog, data)}
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
            formatTick={formatTick}
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

/** Where the reader zooms into what was thinned out, the service is asked for more of it. */
function useDetail(
  job: Job,
  events: readonly JobEvent[],
  rows: readonly MetricRow[],
  tracks: readonly Track[],
  axis: XAxis,
  zoom: Range | null,
): readonly MetricRow[] {
  const seen = zoom && rowsWithin(tracks, axis, zoom);
  const steps = seen && thinnedSteps(rows, (row) => seen.has(row));
  const query = steps && `max_points=${CHART_POINTS}&start=${steps[0]}&end=${steps[1]}`;
  const { value } = useResource<MetricChart>(query && `/jobs/${job.id}/metrics/chart?${query}`);
  const finer = useMemo(() => value && fillMembership(rowsOfChart(value), events), [value, events]);
  return useMemo(() => (finer ? withDetail(rows, finer) : rows), [rows, finer]);
}
