import { words } from "../text/format";
import type { Job } from "../wire";

/** The status as a word and a colour, with the reason where there is one. */
export function StatusChip({ job }: { job: Pick<Job, "status" | "reason" | "phase"> }) {
  const isPhaseTold = job.status === "running" && job.phase !== null && job.phase !== "training";
  const detail = job.reason ? reasonOf(job.status, job.reason) : isPhaseTold ? job.phase : null;
  return (
    <span class={`status status-${job.status}`} data-status={job.status}>
      <i class="status-dot" aria-hidden="true" />
      {job.status}
      {detail && <span class="status-detail">{detail}</span>}
    </span>
  );
}

/** The reason without the status, which stands before it: `cancelled_by_user` is "by user". */
function reasonOf(status: string, reason: string): string {
  return words(reason.startsWith(`${status}_`) ? reason.slice(status.length + 1) : reason);
}
