import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { formatCount, formatElapsed, formatValue } from "../text/format";
import type { LaneData, Range, XAxis } from "./data";
import { indexUpTo, isPlain, placeAfter, zoomAfter } from "./keys";
import { type LineStyle, readingAt } from "./lines";
import { laneOptions } from "./options";
import { type ChartInputs, decideChart } from "./plan";

export interface LineOf extends LineStyle {
  name: string;
  /** Where more of it is told, if anywhere. */
  href?: string;
}

type Format = (value: number | null | undefined) => string;

export interface LaneProps {
  title: string;
  /** A custom property of tokens.css without the dashes: the line's colour. */
  colour: string;
  data: LaneData;
  axis: XAxis;
  range: Range;
  /** From the first place to the last one, of which the range is a part. */
  whole: Range;
  width: number;
  height: number;
  /** Of a stack of areas: its colours and names, the highest first; `colour` is then only a title's. */
  layers?: { colour: string; name: string }[];
  /** Of several lines: whose they are, in the order of the data's. */
  lines?: LineOf[];
  /** Whether the lane shows the labels of the shared x axis (the last one does). */
  hasAxis: boolean;
  isStepped?: boolean;
  isLog?: boolean;
  /** What a reader would else take for granted of how it is drawn. */
  note?: string;
  /** Greatest value of a whole-number axis that begins at zero, or of none. */
  wholeTo?: number;
  fromZero?: boolean;
  theme: string;
  format?: Format;
  /** Of the ticks at its left, where a number alone would not tell its unit. */
  formatTick?: (value: number) => string;
  onZoom: (range: Range | null) => void;
}

/** One chart of the board: a uPlot instance that is fed, resized or rebuilt as little as possible. */
export function Lane(props: LaneProps) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const built = useRef<ChartInputs | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [hover, setHover] = useState<number | null>(null);
  /** Where the keyboard reads; null: it does not. */
  const look = useRef<number | null>(null);
  const [told, setTold] = useState("");

  useEffect(() => {
    const element = host.current;
    if (!element || props.width < 1) return;
    const inputs: ChartInputs = {
      signature: signatureOf(props),
      data: props.data,
      width: props.width,
      height: props.height,
    };
    for (const step of decideChart(built.current, inputs)) {
      if (step === "create") {
        plot.current?.destroy();
        plot.current = new uPlot(laneOptions(latest, setHover), columnsOf(props.data), element);
        look.current = null; // a new one has no size yet
      } else if (step === "resize") {
        plot.current?.setSize({ width: props.width, height: props.height });
      } else {
        plot.current?.setData(columnsOf(props.data));
      }
    }
    // It stays on its place while the line moves on below it.
    if (look.current !== null) showCursor(plot.current, look.current, props.range);
    built.current = inputs;
  });

  useEffect(
    () => () => {
      plot.current?.destroy();
      plot.current = null;
      built.current = null;
    },
    [],
  );

  const format = props.format ?? formatValue;
  const index = hover !== null && hover < props.data.x.length ? hover : props.data.x.length - 1;
  const x = props.data.x[index];
  const onKeyDown = (event: KeyboardEvent) => {
    if (!isPlain(event)) return;
    const { data, range, whole, onZoom } = props;
    const place = placeAfter(event.key, data.x, range, look.current);
    const part = event.key === "Escape" ? whole : zoomAfter(event.key, data.x, range, whole, look.current);
    if (place === null && part === null) return;
    event.preventDefault();
    if (place !== null) {
      look.current = place;
      showCursor(plot.current, place, range);
      setTold(tell(props, format, indexUpTo(data.x, place)));
    } else if (part !== null) {
      const isAll = part[0] <= whole[0] && part[1] >= whole[1];
      onZoom(isAll ? null : part);
      setTold(
        isAll ? "All is shown" : `From ${nameOf(props.axis, part[0])} to ${nameOf(props.axis, part[1])}`,
      );
    }
  };
  const onBlur = () => {
    if (look.current !== null) showCursor(plot.current, null, props.range);
    look.current = null;
    setTold("");
  };
  return (
    <section class="lane" aria-label={`${props.title} chart`}>
      <header class="lane-head">
        {!props.layers && !props.lines && <i class={`swatch swatch-${props.colour}`} aria-hidden="true" />}
        <span class="lane-title">{props.title}</span>
        {!props.lines && <span class="lane-value">{format(props.data.y[index])}</span>}
        {props.lines && <Legend lines={props.lines} data={props.data} place={hover} format={format} />}
        {props.layers?.map((layer, place) => (
          <span key={layer.name} class="lane-layer">
            <i class={`swatch swatch-${layer.colour}`} aria-hidden="true" />
            {layer.name} {format(heightOf(props.data, place, index))}
          </span>
        ))}
        {props.note && <span class="soft">{props.note}</span>}
        <span class="lane-at">{x !== undefined && hover !== null && `at ${nameOf(props.axis, x)}`}</span>
        <span class="lane-keys" aria-hidden="true">
          ← → read, + − zoom, Esc shows all
        </span>
      </header>
      <div
        ref={host}
        class="lane-plot"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a picture that is read by arrow keys must have the focus
        tabIndex={0}
        role="application"
        aria-label={`${props.title}. Arrow keys read it, plus and minus zoom, Escape shows all`}
        onKeyDown={onKeyDown}
        onPointerMove={() => {
          look.current = null;
        }}
        onBlur={onBlur}
      />
      <output class="hidden">{told}</output>
    </section>
  );
}

interface LegendProps {
  lines: LineOf[];
  data: LaneData;
  place: number | null;
  format: Format;
}

/** Whose line is which, and what it reads at the pointer; without one, where it ends. */
function Legend({ lines, data, place, format }: LegendProps) {
  return (
    <ul class="legend">
      {lines.map((line, index) => (
        <li key={line.href ?? line.name}>
          <Stroke line={line} />
          {line.href ? <a href={line.href}>{line.name}</a> : line.name}
          <span class="lane-value">{format(lineAt(data, index, place))}</span>
          {data.lines?.[index]?.trend && <span class="soft">smoothed</span>}
        </li>
      ))}
    </ul>
  );
}

/** A piece of a line as the chart draws it. */
export function Stroke({ line }: { line: LineStyle }) {
  return (
    <svg class={`stroke stroke-${line.colour}`} viewBox="0 0 24 6" aria-hidden="true" focusable="false">
      <line x1="0" y1="3" x2="24" y2="3" stroke-dasharray={line.dash.join(" ")} />
    </svg>
  );
}

function lineAt(data: LaneData, index: number, place: number | null): number | null {
  const column = data.lines?.[index];
  return readingAt(column?.trend ?? column?.y ?? [], place);
}

/** How much a layer adds to those below it. */
function heightOf(data: LaneData, place: number, index: number): number | null {
  const columns = [data.y, ...(data.below ?? [])];
  const top = columns[place]?.[index] ?? null;
  return top === null ? null : top - (columns[place + 1]?.[index] ?? 0);
}

function nameOf(axis: XAxis, x: number): string {
  if (axis === "time") return formatElapsed(x);
  return axis === "step" ? `step ${Math.round(x)}` : `${formatCount(x)} samples`;
}

/** What the chart reads at a point, in words. */
function tell({ title, axis, data, layers, lines }: LaneProps, format: Format, index: number): string {
  const readings = lines
    ? lines.map((line, place) => `${line.name} ${format(lineAt(data, place, index))}`)
    : layers
      ? layers.map((layer, place) => `${layer.name} ${format(heightOf(data, place, index))}`)
      : [`${title} ${format(data.y[index])}`];
  return `${nameOf(axis, data.x[index] ?? 0)}: ${readings.join(", ")}`;
}

/** uPlot tells the other lanes, too, where it is asked to, which its types leave out. */
type SetCursor = (at: { left: number; top: number }, isTold: boolean, isPublished: boolean) => void;

/** Put the cursor to a place as the pointer would, in all lanes; null: nowhere. */
function showCursor(plot: uPlot | null, place: number | null, [min, max]: Range): void {
  if (!plot) return;
  const left = place === null ? -10 : ((place - min) / (max - min)) * plot.over.clientWidth;
  (plot.setCursor as SetCursor)({ left, top: left < 0 ? -10 : 0 }, true, true);
}

function signatureOf(props: LaneProps): string {
  const parts = [
    props.colour,
    props.axis,
    props.hasAxis,
    props.isStepped,
    props.isLog,
    props.theme,
    props.fromZero,
  ];
  const lines = props.lines?.map(
    (line, index) => `${line.colour}${props.data.lines?.[index]?.trend !== null}`,
  );
  return [...parts, props.data.trend !== null, props.layers?.length, lines].join("|");
}

function columnsOf(data: LaneData): uPlot.AlignedData {
  if (data.lines)
    return [data.x, ...data.lines.flatMap((line) => (line.trend ? [line.y, line.trend] : [line.y]))];
  if (data.below) return [data.x, data.y, ...data.below];
  return data.trend ? [data.x, data.y, data.trend] : [data.x, data.y];
}
