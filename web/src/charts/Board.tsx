import { useMemo, useRef, useState } from "preact/hooks";
import { useWidth } from "../parts/useWidth";
import { formatCount } from "../text/format";
import type { Job, JobEvent, MetricRow } from "../wire";
import { buildLane, extentOf, metricNames, orderRows, type Range, type XAxis } from "./data";
import { Lane } from "./Lane";
import { MarkerRail } from "./MarkerRail";
import { markersOf, placeMarkers } from "./markers";
import { AXIS_PX, PAD_PX } from "./options";

interface BoardProps {
  job: Job;
  rows: readonly MetricRow[];
  events: readonly JobEvent[];
  theme: string;
}

const METRIC_COLOURS = ["chart-loss", "chart-second", "chart-third"];

/** The charts of a job, once there is a step to draw. */
export function Board(props: BoardProps) {
  if (props.rows.length > 0) return <Score {...props} />;
  return (
    <section class="card board-empty" aria-label="Charts">
      <p class="soft">No step has been committed yet. The charts begin with the first one.</p>
    </section>
  );
}

/** Metrics, throughput and worker count over one shared axis, with every change of membership marked. */
function Score({ job, rows, events, theme }: BoardProps) {
  const [axis, setAxis] = useState<XAxis>("step");
  const [isSmooth, setSmooth] = useState(true);
  const [isLog, setLog] = useState(false);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(["loss"]));
  const [zoom, setZoom] = useState<Range | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);

  const ordered = useMemo(() => orderRows(rows, axis), [rows, axis]);
  const origin = ordered[0] ? Date.parse(ordered[0].time) : 0;
  const extent = extentOf(ordered, axis, origin);
  const range = zoom ?? extent;
  const names = useMemo(() => metricNames(rows), [rows]);
  const shown = names.filter((name) => chosen.has(name));
  const lanes = useMemo(() => {
    const choice = { axis, origin, range, maxPoints: Math.max(200, width * 2) };
    return {
      metrics: shown.map((name) => ({
        name,
        data: buildLane(ordered, (row) => row.values[name], {
          ...choice,
          hasTrend: isSmooth && rows.length > 60,
        }),
      })),
      speed: buildLane(ordered, (row) => row.values.samples_per_second, {
        ...choice,
        hasTrend: isSmooth && rows.length > 60,
        isTrendByWorkers: true,
      }),
      workers: buildLane(ordered, (row) => row.workers, { ...choice, hasTrend: false }),
    };
  }, [ordered, axis, origin, range[0], range[1], width, shown.join(), isSmooth]);
  const placed = useMemo(
    () => placeMarkers(markersOf(events, axis, origin), range, Math.max(1, width - AXIS_PX - PAD_PX)),
    [events, axis, origin, range[0], range[1], width],
  );

  const changeAxis = (next: XAxis) => {
    setAxis(next);
    setZoom(null);
  };
  const shared = { axis, range, width, theme, onZoom: setZoom };
  const most = Math.max(job.desired_workers, 1, ...lanes.workers.y.map((count) => count ?? 0));
  return (
    <section class="card board" aria-label="Charts">
      <div class="board-bar">
        <MetricChoice names={names} chosen={chosen} onChange={setChosen} />
        <span class="grow" />
        {zoom && (
          <button type="button" class="button small" onClick={() => setZoom(null)}>
            Show all
          </button>
        )}
        <Toggle label="Smooth" isOn={isSmooth} onChange={setSmooth} />
        <Toggle label="Log" isOn={isLog} onChange={setLog} />
        <fieldset class="segments" aria-label="Horizontal axis">
          {(["step", "time"] as const).map((kind) => (
            <button type="button" key={kind} aria-pressed={axis === kind} onClick={() => changeAxis(kind)}>
              {kind === "step" ? "Step" : "Time"}
            </button>
          ))}
        </fieldset>
      </div>
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
            isLog={isLog && data.y.every((value) => value === null || value > 0)}
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

interface MetricChoiceProps {
  names: string[];
  chosen: ReadonlySet<string>;
  onChange: (chosen: ReadonlySet<string>) => void;
}

function MetricChoice({ names, chosen, onChange }: MetricChoiceProps) {
  if (names.length < 2) return <h2 class="board-title">Training</h2>;
  const flip = (name: string) => {
    const next = new Set(chosen);
    if (!next.delete(name)) next.add(name);
    onChange(next);
  };
  return (
    <fieldset class="chips" aria-label="Metrics shown">
      {names.map((name) => (
        <button
          type="button"
          key={name}
          class="chip-toggle"
          aria-pressed={chosen.has(name)}
          onClick={() => flip(name)}
        >
          {name}
        </button>
      ))}
    </fieldset>
  );
}

function Toggle({
  label,
  isOn,
  onChange,
}: {
  label: string;
  isOn: boolean;
  onChange: (isOn: boolean) => void;
}) {
  return (
    <button type="button" class="chip-toggle" aria-pressed={isOn} onClick={() => onChange(!isOn)}>
      {label}
    </button>
  );
}
