/** What to do with a chart when its inputs changed. */

export interface ChartInputs {
  /** Everything uPlot takes only at construction: series, axes, colours, scale kinds. */
  signature: string;
  /** Compared by identity. */
  data: unknown;
  width: number;
  height: number;
}

export type ChartStep = "create" | "data" | "resize";

/** The least work that brings the chart from `before` to `after`, in order; `create` includes the other two. */
export function decideChart(before: ChartInputs | null, after: ChartInputs): ChartStep[] {
  if (before === null || before.signature !== after.signature) return ["create"];
  const steps: ChartStep[] = [];
  if (before.width !== after.width || before.height !== after.height) steps.push("resize");
  if (before.data !== after.data) steps.push("data");
  return steps;
}
