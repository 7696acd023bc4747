/** uPlot's options for one lane of the board. Colours come from tokens.css at the moment of construction. */

import type uPlot from "uplot";
import { formatElapsed, formatValue } from "../text/format";
import type { LaneProps, LineOf } from "./Lane";
import { stepped } from "./paths";

/** Width of the y axis and free room at the right: equal in all lanes, so that they align. */
export const AXIS_PX = 60;
export const PAD_PX = 14;

const SYNC_KEY = "board";
const FONT = "11px system-ui, sans-serif";
/** Seconds between ticks of the time axis: round for a clock, not for a ruler. */
const TIME_STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400, 604_800,
];

/** A custom property as the colour it stands for; canvases cannot read light-dark(). */
function colour(name: string): string {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function faded(rgb: string, alpha: number): string {
  const [r = "0", g = "0", b = "0"] = rgb.match(/[\d.]+/g) ?? [];
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

/** `latest` is read at each call, so that ranges and limits follow the props without a rebuild. */
export function laneOptions(
  latest: { current: LaneProps },
  onHover: (index: number | null) => void,
): uPlot.Options {
  const props = latest.current;
  return {
    width: props.width,
    height: props.height,
    padding: [6, PAD_PX, props.hasAxis ? 0 : 4, 0],
    legend: { show: false },
    cursor: {
      y: false,
      points: { size: 7 },
      drag: { x: true, y: false, setScale: false, dist: 4 },
      sync: { key: SYNC_KEY, scales: ["x", null], setSeries: false },
      bind: {
        dblclick: () => () => {
          latest.current.onZoom(null);
          return null;
        },
      },
    },
    scales: {
      x: { time: false, range: () => [...latest.current.range] as [number, number] },
      y: { distr: props.isLog ? 3 : 1, range: (_, min, max) => rangeOf(latest.current, min, max) },
    },
    axes: [xAxis(props), yAxis(latest)],
    series: [{}, ...seriesOf(props)],
    hooks: {
      setCursor: [
        (u) => onHover(u.cursor.left !== undefined && u.cursor.left >= 0 ? (u.cursor.idx ?? null) : null),
      ],
      setSelect: [
        (u) => {
          if (u.select.width < 4) return;
          const from = u.posToVal(u.select.left, "x");
          const to = u.posToVal(u.select.left + u.select.width, "x");
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          latest.current.onZoom([from, to]);
        },
      ],
    },
  };
}

function rangeOf(props: LaneProps, min: number | null, max: number | null): [number, number] {
  if (props.wholeTo !== undefined) return [0, props.wholeTo + 0.5];
  if (min === null || max === null) return props.isLog ? [0.1, 1] : [0, 1];
  if (props.isLog) return [10 ** Math.floor(Math.log10(min)), 10 ** Math.ceil(Math.log10(max) + 1e-9)];
  const low = props.fromZero ? Math.min(0, min) : min;
  const pad = (max - low || Math.abs(max) || 1) * 0.06;
  return [props.fromZero && low === 0 ? 0 : low - pad, max + pad];
}

function seriesOf(props: LaneProps): uPlot.Series[] {
  // Each area reaches down to zero and is painted over by those below it.
  if (props.layers)
    return props.layers.map((layer) => ({
      fill: colour(layer.colour),
      stroke: colour(layer.colour),
      width: 0,
      points: { show: false },
    }));
  if (props.lines) return props.lines.flatMap((line, index) => lineSeries(props, line, index));
  const stroke = colour(props.colour);
  const hasTrend = props.data.trend !== null;
  const raw: uPlot.Series = {
    stroke: hasTrend ? faded(stroke, 0.3) : stroke,
    width: hasTrend ? 1 : 1.75,
    points: { show: props.data.x.length < 3 },
    ...(props.isStepped ? { paths: stepped, fill: faded(stroke, 0.16) } : {}),
  };
  return hasTrend ? [raw, { stroke, width: 2, points: { show: false } }] : [raw];
}

/** Under a trend what was measured is fainter than in a lane of its own: there are several of them. */
function lineSeries(props: LaneProps, line: LineOf, index: number): uPlot.Series[] {
  const stroke = colour(line.colour);
  const drawn = { stroke, width: 2, dash: line.dash, ...(props.isStepped ? { paths: stepped } : {}) };
  if (!props.data.lines?.[index]?.trend) return [{ ...drawn, points: { show: props.data.x.length < 3 } }];
  const measured = { stroke: faded(stroke, 0.22), width: 1, points: { show: false } };
  return [measured, { ...drawn, points: { show: false } }];
}

function xAxis(props: LaneProps): uPlot.Axis {
  return {
    stroke: colour("ink-soft"),
    font: FONT,
    grid: { stroke: colour("rule"), width: 1 },
    ticks: { show: false },
    size: props.hasAxis ? 26 : 0,
    gap: 6,
    space: 70,
    ...(props.axis === "time" ? { incrs: TIME_STEPS } : { incrs: WHOLE_STEPS }),
    values: (_, splits) =>
      props.hasAxis
        ? splits.map((x) => (props.axis === "time" ? formatElapsed(x) : formatAxis(x)))
        : splits.map(() => ""),
  };
}

/** Steps are whole numbers, and so are their ticks. */
const WHOLE_STEPS = Array.from({ length: 10 }, (_, power) =>
  [1, 2, 5].map((digit) => digit * 10 ** power),
).flat();

function yAxis(latest: { current: LaneProps }): uPlot.Axis {
  const isWhole = latest.current.wholeTo !== undefined;
  const format = latest.current.formatTick ?? formatAxis;
  return {
    stroke: colour("ink-soft"),
    font: FONT,
    grid: { stroke: colour("rule"), width: 1 },
    ticks: { show: false },
    size: AXIS_PX,
    gap: 8,
    space: isWhole ? 13 : 34,
    ...(isWhole ? { incrs: WHOLE_STEPS } : {}),
    values: (_, splits) => splits.map((y) => (y === null || y === undefined ? "" : format(y))),
  };
}

function formatAxis(value: number): string {
  if (Math.abs(value) >= 1e6) return `${formatValue(value / 1e6)}M`;
  if (Math.abs(value) >= 1e4) return `${formatValue(value / 1e3)}k`;
  return formatValue(value);
}
