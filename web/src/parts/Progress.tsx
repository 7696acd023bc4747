import type { Job } from "../wire";

/** How far a job has come. Without a known total the bar only says that it moves. */
export function Progress({ job, label }: { job: Job; label: string }) {
  const share = job.total_steps ? Math.min(1, job.step / job.total_steps) : null;
  const value = share === null ? {} : { "aria-valuenow": Math.round(share * 100) };
  return (
    <div
      class={`progress progress-${job.status} ${share === null ? "progress-open" : ""}`}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      {...value}
    >
      <i style={{ width: `${(share ?? 0) * 100}%` }} />
    </div>
  );
}
