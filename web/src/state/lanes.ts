/** The life of each worker, as the events tell: when it joined, which rank it had in which generation, how it ended. Pure. */

import { sentence } from "../text/format";
import type { JobEvent } from "../wire";

export type LaneState = "starting" | "ready" | "training" | "leaving";

/** Times are milliseconds since 1970. */
export interface LaneSpan {
  state: LaneState;
  from: number;
  to: number;
  rank: number | null;
  /** The first and the last generation in which the worker had this rank. */
  generations: [first: number, last: number] | null;
}

export interface WorkerLane {
  workerId: string;
  node: string | null;
  spans: LaneSpan[];
  /** `lost`: killed, crashed or fenced; `left`: was let go; `over`: the job ended or paused; null: it lives. */
  end: "lost" | "left" | "over" | null;
  /** How it ended, as its event says. */
  endText: string;
}

/** Statuses in which a job has no workers. */
const WITHOUT_WORKERS = new Set(["queued", "paused", "succeeded", "failed", "cancelled"]);

/** One lane a worker, in the order in which they joined; lives that still go on reach to `end`. */
export function lanesOf(events: readonly JobEvent[], end: number): WorkerLane[] {
  const book = new LaneBook();
  for (const event of events) book.take(event);
  return book.close(end);
}

/** When each generation after the first began. */
export function generationStarts(events: readonly JobEvent[]): number[] {
  const formed = events.filter((event) => event.kind === "generation.formed");
  return formed.slice(1).map((event) => Date.parse(event.time));
}

class LaneBook {
  private readonly lanes: WorkerLane[] = [];
  private readonly living = new Map<string, WorkerLane>();

  take(event: JobEvent): void {
    const at = Date.parse(event.time);
    const workerId = typeof event.data.worker_id === "string" ? event.data.worker_id : null;
    if (event.kind === "job.status" && WITHOUT_WORKERS.has(String(event.data.to))) this.endAll(at);
    else if (event.kind === "generation.formed") this.form(event, at);
    else if (workerId === null) return;
    else if (event.kind === "worker.started") this.start(workerId, event, at);
    else if (event.kind === "worker.ready") this.enter(this.laneOf(workerId, at), at, "ready");
    else if (event.kind === "worker.lost") this.finish(workerId, at, "lost", event);
    else if (event.kind === "worker.left") this.finish(workerId, at, "left", event);
  }

  close(end: number): WorkerLane[] {
    for (const lane of this.living.values()) endSpan(lane, end);
    return this.lanes;
  }

  /** A later attempt may use the name of a worker again: that is another life. */
  private start(workerId: string, event: JobEvent, at: number): void {
    const before = this.living.get(workerId);
    if (before) this.endLane(before, at, "over", "");
    const lane = this.laneOf(workerId, at);
    lane.node = typeof event.data.node === "string" ? event.data.node : null;
  }

  private laneOf(workerId: string, at: number): WorkerLane {
    const known = this.living.get(workerId);
    if (known) return known;
    const first: LaneSpan = { state: "starting", from: at, to: at, rank: null, generations: null };
    const lane: WorkerLane = { workerId, node: null, spans: [first], end: null, endText: "" };
    this.living.set(workerId, lane);
    this.lanes.push(lane);
    return lane;
  }

  private form(event: JobEvent, at: number): void {
    const members = event.data.members;
    if (!Array.isArray(members)) return;
    const generation = event.generation ?? 0;
    const ranks = new Map(
      (members as { worker_id: string; rank: number }[]).map((m) => [m.worker_id, m.rank]),
    );
    for (const [workerId, rank] of ranks) {
      const lane = this.laneOf(workerId, at);
      const last = lane.spans.at(-1);
      if (last?.state === "training" && last.rank === rank && last.generations)
        last.generations[1] = generation;
      else this.enter(lane, at, "training", rank, generation);
    }
    for (const lane of this.living.values())
      if (!ranks.has(lane.workerId) && lane.spans.at(-1)?.state === "training")
        this.enter(lane, at, "leaving");
  }

  private enter(
    lane: WorkerLane,
    at: number,
    state: LaneState,
    rank: number | null = null,
    generation = 0,
  ): void {
    endSpan(lane, at);
    const generations: LaneSpan["generations"] = rank === null ? null : [generation, generation];
    lane.spans.push({ state, from: at, to: at, rank, generations });
  }

  /** One that nothing was told of before has a lane of no length: its end is still seen. */
  private finish(workerId: string, at: number, end: "lost" | "left", event: JobEvent): void {
    this.endLane(this.laneOf(workerId, at), at, end, sentence(event.message));
  }

  private endAll(at: number): void {
    for (const lane of [...this.living.values()]) this.endLane(lane, at, "over", "");
  }

  private endLane(lane: WorkerLane, at: number, end: WorkerLane["end"], text: string): void {
    endSpan(lane, at);
    lane.end = end;
    lane.endText = text;
    this.living.delete(lane.workerId);
  }
}

/** Events of one batch may be told a little out of order: no span ends before it begins. */
function endSpan(lane: WorkerLane, at: number): void {
  const last = lane.spans.at(-1);
  if (!last) return;
  last.to = Math.max(last.from, at);
}
