import { useMemo, useRef, useState } from "preact/hooks";
import { useWidth } from "../parts/useWidth";
import { jobPath } from "../router";
import type { Job, MetricChart } from "../wire";
import { BoardBar, type Choice } from "./BoardBar";
import { axesOf, type Range } from "./data";
import { Lane } from "./Lane";
import { buildLines, logOf, rangeOf, styleOf, trackOf } from "./lines";

export interface RunDrawn {
  job: Job;
  chart: MetricChart;
  /** Its place among those compared, which gives the line its colour. */
  place: number;
}

interface RunsBoardProps {
  runs: readonly RunDrawn[];
  /** All metrics that can be chosen. */
  names: string[];
  choice: Choice;
  theme: string;
  isLoading: boolean;
  onChoice: (choice: Choice) => void;
}

const READING = "Reading what was measured so far…";

/** One lane a metric, one line a job, over an axis that begins with each of them. */
export function RunsBoard({ runs, names, choice, theme, isLoading, onChoice }: RunsBoardProps) {
  const [zoom, setZoom] = useState<Range | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const { isSmooth } = choice;
  const axes = axesOf(runs.map(({ job }) => job));
  const axis = axes.includes(choice.axis) ? choice.axis : "step";
  const metrics = [...choice.metrics];
  // A job's figures change every second; its line only with what was read of it.
  const drawn = runs.flatMap((run) => [run.job.id, run.chart]);
  const tracks = useMemo(() => runs.map(({ job, chart }) => trackOf(job, chart, axis)), [axis, ...drawn]);
  const whole = rangeOf(tracks, axis);
  const range = zoom ?? whole;
  const lanes = useMemo(
    () =>
      metrics.map((name) => ({
        name,
        data: buildLines(tracks, (row) => row.values[name], {
          axis,
          range,
          maxPoints: Math.max(200, width * 2),
          isSmooth,
          meanOf: (row) => row.means?.[name],
        }),
      })),
    [tracks, metrics.join("\n"), range[0], range[1], width, isSmooth],
  );
  const lines = runs.map(({ job, place }) => ({
    name: job.name,
    href: jobPath(job.id),
    ...styleOf(place),
  }));
  const choose = (next: Choice) => {
    if (next.axis !== axis) setZoom(null);
    onChoice(next);
  };
  return (
    <section class="card board" aria-label="Charts" aria-busy={isLoading}>
      <BoardBar
        choice={{ ...choice, axis }}
        axes={axes}
        names={names}
        attempts={[]}
        onChoice={choose}
        onShowAll={zoom && (() => setZoom(null))}
      />
      <div class="board-frame" ref={frame}>
        {lanes.map(({ name, data }, index) =>
          data.x.length > 0 ? (
            <Lane
              key={name}
              title={name}
              colour="chart-loss"
              lines={lines}
              data={data}
              axis={axis}
              range={range}
              whole={whole}
              width={width}
              height={lanes.length === 1 ? 320 : 200}
              hasAxis={index === lanes.length - 1}
              {...logOf(choice.isLog, data)}
              theme={theme}
              onZoom={setZoom}
            />
          ) : (
            <p key={name} class="soft lane-none">
              {isLoading ? READING : `None of these jobs has measured ${name}.`}
            </p>
          ),
        )}
        {lanes.length === 0 && (
          <p class="soft lane-none">
            {isLoading ? READING : "None of these jobs has measured anything yet."}
          </p>
        )}
      </div>
    </section>
  );
}
