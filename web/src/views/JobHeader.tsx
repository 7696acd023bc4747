import { Copy } from "../parts/Copy";
import { Heading } from "../parts/Heading";
import { Icon } from "../parts/Icon";
import { Progress } from "../parts/Progress";
import { Prose } from "../parts/Prose";
import { StatusChip } from "../parts/StatusChip";
import { useMayChange } from "../parts/useMe";
import { WorkerStepper } from "../parts/WorkerStepper";
import { describeJob, sinceOf } from "../state/events";
import { formatAgo, formatCoarse, formatTime } from "../text/format";
import { isFinal, type Job, type JobEvent } from "../wire";
import { JobActions } from "./JobActions";

interface JobHeaderProps {
  job: Job;
  events: readonly JobEvent[];
  now: number;
  onJob: (job: Job) => void;
}

/** What the job is, how it stands, why and since when, and what can be done about it. */
export function JobHeader({ job, events, now, onJob }: JobHeaderProps) {
  const mayChange = useMayChange(job.project);
  const since = sinceOf(job, events);
  // The browser's clock may be behind the service's, and "for 3 ms" helps nobody.
  const age = Math.max(1, (now - Date.parse(since)) / 1000);
  return (
    <header class="job-head">
      <div class="job-title">
        <a class="icon-button" href="/" aria-label="All jobs" title="All jobs">
          <Icon name="back" />
        </a>
        <Heading>{job.name}</Heading>
        <StatusChip job={job} />
        <span class="soft" title={formatTime(since, 0)}>
          {isFinal(job.status) ? formatAgo(since, now) : `for ${formatCoarse(age)}`}
        </span>
        <span class="grow" />
        <JobActions job={job} onJob={onJob} />
      </div>
      <div class="job-why">
        <p>
          {job.failure ? null : <Prose text={describeJob(job)} />}
          <span class="job-id soft">
            <code>{job.id}</code>
            <Copy text={job.id} label="Copy the job's id" />
          </span>
        </p>
        {!mayChange && <p class="soft">You may watch the jobs of {job.project}, not change them.</p>}
        {mayChange && !isFinal(job.status) && <WorkerStepper job={job} events={events} onJob={onJob} />}
      </div>
      <Progress job={job} label="Progress" />
    </header>
  );
}
