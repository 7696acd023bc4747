/** Markers of the board: what changed the membership, when, and what it cost. Pure. */

import { formatDuration, plural } from "../text/format";
import type { JobEvent } from "../wire";
import { type Range, type XAxis, xOf } from "./data";

export type MarkerKind = "up" | "down" | "replace" | "balance" | "failure" | "restart" | "resume";

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
  replace: "+",
  balance: "⇄",
  failure: "✕",
  restart: "↻",
  resume: "▶",
};

const KINDS: Record<string, MarkerKind> = {
  scale_up: "up",
  scale_down: "down",
  replace: "replace",
  rebalance: "balance",
  recovery: "failure",
  restart: "restart",
};

/** One marker for each new membership after the first, and one for a loss that is not yet mended. */
export function markersOf(events: readonly JobEvent[], axis: XAxis, origin: number, batch = 1): Marker[] {
  const markers: Marker[] = [];
  let losses: JobEvent[] = [];
  let moves: string[] = [];
  for (const event of events) {
    if (event.kind === "worker.lost") losses.push(event);
    if (event.kind === "rebalanced") moves.push(event.message);
    if (event.kind !== "generation.formed") continue;
    const kind = kindOf(event);
    const causes = [...losses.map(describeLoss), ...(kind === "balance" ? moves : [])];
    if (kind) markers.push(describe(event, kind, causes, placeOf(event, axis, origin, batch)));
    losses = [];
    moves = [];
  }
  const open = losses[0];
  if (open) markers.push(unmended(open, losses, placeOf(open, axis, origin, batch)));
  return markers;
}

function kindOf(event: JobEvent): MarkerKind | null {
  const kind = KINDS[String(event.data.cause)];
  if (kind) return kind;
  return (event.attempt ?? 1) > 1 ? "resume" : null;
}

function placeOf(event: JobEvent, axis: XAxis, origin: number, batch: number): number {
  return xOf({ step: numberOf(event.data.step) ?? event.step ?? 0, time: event.time }, axis, origin, batch);
}

function describe(event: JobEvent, kind: MarkerKind, causes: string[], x: number): Marker {
  const workers = numberOf(event.data.workers);
  const from = numberOf(event.data.from_workers);
  const paused = numberOf(event.data.paused_seconds);
  const redone = numberOf(event.data.redone_microbatches);
  const step = numberOf(event.data.step) ?? event.step;
  const details = [...causes];
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
    case "replace":
      return `Replaced a lost worker${change}`;
    case "balance":
      return "Moved microbatches between workers";
    case "failure":
      return `Recovered from a loss${change}`;
    case "restart":
      return "Restarted from a checkpoint";
    case "resume":
      return "Resumed";
  }
}

function describeLoss(event: JobEvent): string {
  const { worker_id, rank, signal, exit_code, cause, hang } = event.data;
  const who = `${worker_id ?? "a worker"}${rank === null || rank === undefined ? "" : ` (rank ${rank})`}`;
  // A worker that hung is killed: the signal is then not why.
  const how = hang ? cause : (signal ?? (typeof exit_code === "number" ? `exit code ${exit_code}` : cause));
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
  /** 0: the upper row of the rail, 1: the lower. */
  row: number;
  markers: Marker[];
  /** Whether there is room to write the pause beside the glyph. */
  hasLabel: boolean;
}

/** Nearer than this, markers cannot be pointed at apart and share a chip. */
const APART_PX = 10;
const GLYPH_PX = 26;
const LETTER_PX = 7.4;
const ROWS = 2;

/**
 * Put markers on the axis, in two rows. A chip takes the first row with room for its label, else the first with room
 * for its glyph, else it joins the chip before it. Markers too near to tell apart share one chip from the start.
 */
export function placeMarkers(markers: readonly Marker[], range: Range, width: number): PlacedMarker[] {
  const ends: number[] = Array.from({ length: ROWS }, () => Number.NEGATIVE_INFINITY);
  const placed: PlacedMarker[] = [];
  for (const group of groupMarkers(markers, range, width)) {
    const label = group.markers.length === 1 ? (group.markers[0]?.pause ?? "") : "";
    const spot = findRow(
      ends,
      group.px,
      label ? [GLYPH_PX + label.length * LETTER_PX, GLYPH_PX] : [GLYPH_PX],
    );
    const before = placed.at(-1);
    if (spot) {
      ends[spot.row] = group.px + spot.size / 2 + 4;
      const hasLabel = spot.size > GLYPH_PX;
      placed.push({ left: (group.px / width) * 100, row: spot.row, markers: group.markers, hasLabel });
    } else if (before) {
      before.markers.push(...group.markers);
      before.hasLabel = false;
    }
  }
  return placed;
}

function findRow(ends: readonly number[], px: number, sizes: number[]): { row: number; size: number } | null {
  for (const size of sizes) {
    const row = ends.findIndex((end) => px - size / 2 >= end);
    if (row >= 0) return { row, size };
  }
  return null;
}

interface MarkerGroup {
  px: number;
  markers: Marker[];
}

function groupMarkers(markers: readonly Marker[], range: Range, width: number): MarkerGroup[] {
  const span = range[1] - range[0];
  const groups: MarkerGroup[] = [];
  for (const marker of [...markers].sort((a, b) => a.x - b.x)) {
    if (marker.x < range[0] || marker.x > range[1] + span * 0.02) continue;
    const px = Math.min(width, ((marker.x - range[0]) / span) * width);
    const near = groups.at(-1);
    if (near && px - near.px < APART_PX) near.markers.push(marker);
    else groups.push({ px, markers: [marker] });
  }
  return groups;
}
