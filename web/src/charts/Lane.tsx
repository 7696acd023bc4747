import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { formatElapsed, formatValue } from "../text/format";
import type { LaneData, Range, XAxis } from "./data";
import { laneOptions } from "./options";
import { type ChartInputs, decideChart } from "./plan";

export interface LaneProps {
  title: string;
  /** A custom property of tokens.css without the dashes: the line's colour. */
  colour: string;
  data: LaneData;
  axis: XAxis;
  range: Range;
  width: number;
  height: number;
  /** Whether the lane shows the labels of the shared x axis (the last one does). */
  hasAxis: boolean;
  isStepped?: boolean;
  isLog?: boolean;
  /** Greatest value of a whole-number axis that begins at zero, or of none. */
  wholeTo?: number;
  fromZero?: boolean;
  theme: string;
  format?: (value: number | null | undefined) => string;
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
      } else if (step === "resize") {
        plot.current?.setSize({ width: props.width, height: props.height });
      } else {
        plot.current?.setData(columnsOf(props.data));
      }
    }
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
  return (
    <section class="lane" aria-label={`${props.title} chart`}>
      <header class="lane-head">
        <i class={`swatch swatch-${props.colour}`} aria-hidden="true" />
        <span class="lane-title">{props.title}</span>
        <output class="lane-value">{format(props.data.y[index])}</output>
        <span class="lane-at">{x !== undefined && hover !== null && placeName(props.axis, x)}</span>
      </header>
      <div ref={host} class="lane-plot" />
    </section>
  );
}

function placeName(axis: XAxis, x: number): string {
  return axis === "step" ? `at step ${x}` : `at ${formatElapsed(x)}`;
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
  return [...parts, props.data.trend !== null].join("|");
}

function columnsOf(data: LaneData): uPlot.AlignedData {
  return data.trend ? [data.x, data.y, data.trend] : [data.x, data.y];
}
