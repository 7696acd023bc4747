/** Markers of the board: what changed the membership, when, and what it cost. Pure. */

import { formatDuration, plural } from "../text/format";
import type { JobEvent } from "../wire";
import type { Range, XAxis } from "./data";

export type MarkerKind = "up" | "down" | "failure" | "restart" | "resume";

export interface Marker {
  position: number;
  x: number;
  kind: MarkerKind;
  /** The measured pause, "41 ms", or "" while it is not known. */
  pause: string;
  /** One line: what happened. */
  title: string;
  /** More, a line each. */
  details: string[];
}

export const GLYPHS: Record<MarkerKind, string> = {
  up: "▲",
  down: "▼",
  failure: "✕",
  restart: "↻",
  resume: "▶",
};

const KINDS: Record<string, MarkerKind> = {
  scale_up: "up",
  scale_down: "down",
  recovery: "failure",
  restart: "restart",
};

/** One marker for each new membership after the first, and one for a loss that is not yet mended. */
export function markersOf(events: readonly JobEvent[], axis: XAxis, origin: number): Marker[] {
  const markers: Marker[] = [];
  let losses: JobEvent[] = [];
  for (const event of events) {
    if (event.kind === "worker.lost") losses.push(event);
    if (event.kind !== "generation.formed") continue;
    const kind = kindOf(event);
    if (kind) markers.push(describe(event, kind, losses, placeOf(event, axis, origin)));
    losses = [];
  }
  const open = losses[0];
  if (open) markers.push(unmended(open, losses, placeOf(open, axis, origin)));
  return markers;
}

function kindOf(event: JobEvent): MarkerKind | null {
  const kind = KINDS[String(event.data.cause)];
  if (kind) return kind;
  return (event.attempt ?? 1) > 1 ? "resume" : null;
}

function placeOf(event: JobEvent, axis: XAxis, origin: number): number {
  if (axis === "time") return (Date.parse(event.time) - origin) / 1000;
  return numberOf(event.data.step) ?? event.step ?? 0;
}

function describe(event: JobEvent, kind: MarkerKind, losses: JobEvent[], x: number): Marker {
  const workers = numberOf(event.data.workers);
  const from = numberOf(event.data.from_workers);
  const paused = numberOf(event.data.paused_seconds);
  const redone = numberOf(event.data.redone_microbatches);
  const step = numberOf(event.data.step) ?? event.step;
  const details = [...losses.map(describeLoss)];
  if (paused !== null) details.push(`paused ${formatDuration(paused)}`);
  if (redone) details.push(`${plural(redone, "microbatch").replace(/hs$/, "hes")} computed again`);
  details.push(
    [step !== null && `step ${step}`, event.generation && `generation ${event.generation}`]
      .filter(Boolean)
      .join(" · "),
  );
  return {
    position: event.position,
    x,
    kind,
    pause: paused === null ? "" : formatDuration(paused),
    title: titleOf(kind, from, workers),
    details: details.filter(Boolean),
  };
}

function titleOf(kind: MarkerKind, from: number | null, workers: number | null): string {
  const change = from !== null && workers !== null ? ` ${from} → ${workers} workers` : "";
  switch (kind) {
    case "up":
      return `Scaled up${change}`;
    case "down":
      return `Scaled down${change}`;
    case "failure":
      return `Recovered from a loss${change}`;
    case "restart":
      return "Restarted from a checkpoint";
    case "resume":
      return "Resumed";
  }
}

function describeLoss(event: JobEvent): string {
  const { worker_id, rank, signal, exit_code, cause } = event.data;
  const who = `${worker_id ?? "a worker"}${rank === null || rank === undefined ? "" : ` (rank ${rank})`}`;
  const how = signal ?? (typeof exit_code === "number" ? `exit code ${exit_code}` : cause);
  return `${who} lost${how ? `: ${how}` : ""}`;
}

function unmended(event: JobEvent, losses: JobEvent[], x: number): Marker {
  const details = losses.map(describeLoss);
  return { position: event.position, x, kind: "failure", pause: "", title: "Worker lost", details };
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

export interface PlacedMarker {
  /** Per cent of the plot's width. */
  left: number;
  markers: Marker[];
  /** Whether there is room to write the pause beside the glyph. */
  hasLabel: boolean;
}

/** A chip with its pause is about this wide, and a bare glyph this. */
const LABEL_PX = 76;
const GLYPH_PX = 22;

/** Put markers on the axis: those too near to tell apart become one chip, and a chip without room loses its label. */
export function placeMarkers(markers: readonly Marker[], range: Range, width: number): PlacedMarker[] {
  const span = range[1] - range[0];
  const visible = markers.filter((marker) => marker.x >= range[0] && marker.x <= range[1]);
  const groups: { px: number; markers: Marker[] }[] = [];
  for (const marker of [...visible].sort((a, b) => a.x - b.x)) {
    const px = ((marker.x - range[0]) / span) * width;
    const near = groups.at(-1);
    if (near && px - near.px < GLYPH_PX) near.markers.push(marker);
    else groups.push({ px, markers: [marker] });
  }
  return groups.map((group, index) => {
    const gaps = [groups[index - 1], groups[index + 1]].map((other) =>
      other ? Math.abs(other.px - group.px) : width,
    );
    const hasLabel = group.markers.length === 1 && Math.min(...gaps) >= LABEL_PX;
    return { left: (group.px / width) * 100, markers: group.markers, hasLabel };
  });
}
