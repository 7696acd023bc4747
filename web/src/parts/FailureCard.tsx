import { jobPath } from "../router";
import { hasCheckpoint } from "../state/events";
import { adviceOf, messageOf, outputsOf, type Told } from "../state/failure";
import { parseAnsi } from "../text/ansi";
import { words } from "../text/format";
import type { AdvisedFailure, Failure, Job, JobEvent } from "../wire";
import { Copy } from "./Copy";
import { Icon } from "./Icon";
import { LogText } from "./LogText";

const CLASSES: Record<Failure["failure_class"], string> = {
  user: "In the job's own code",
  infrastructure: "In the infrastructure",
  service: "In Rubato itself",
};

interface FailureCardProps {
  job: Job;
  failure: AdvisedFailure;
  events: readonly JobEvent[];
}

/** Why a job failed, where it began, and what to do. */
export function FailureCard({ job, failure, events }: FailureCardProps) {
  // Ray Train's checkpoints are its own: a spec cannot name one to begin from.
  const hasAny = hasCheckpoint(events);
  const canGoOn = !job.scaling_restarts && hasAny;
  const where: [string, string | number | null][] = [
    ["First failing rank", failure.rank],
    ["Worker", failure.worker_id],
    ["Node", failure.node],
    ["Exit", failure.signal ?? (failure.exit_code === null ? null : `code ${failure.exit_code}`)],
    ["Step", failure.step],
    ["Microbatch", failure.microbatch],
  ];
  const known = where.filter(([, value]) => value !== null && value !== undefined);
  return (
    <section class="card failure" aria-labelledby="failure-title" data-failure={failure.reason}>
      <p class="failure-class">{CLASSES[failure.failure_class] ?? failure.failure_class}</p>
      <h2 id="failure-title">{sentenceCase(words(failure.reason))}</h2>
      <p>{messageOf(failure)}</p>
      <dl class="facts">
        {known.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {outputsOf(failure).map((told) => (
        <Output key={told.title} {...told} />
      ))}
      <p class="actions">
        <a class="button" href={jobPath(job.id, "logs")}>
          <Icon name="down" /> Logs, at the failing line
        </a>
      </p>
      <p class="failure-advice">
        <strong>What to do</strong> {adviceOf(failure, canGoOn)}{" "}
        {hasAny && <a href={jobPath(job.id, "checkpoints")}>Checkpoints</a>}
      </p>
    </section>
  );
}

function Output({ title, text }: Told) {
  return (
    <div class="output">
      <Copy text={text} label={`Copy: ${title.toLowerCase()}`} />
      <details open>
        <summary>{title}</summary>
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolled region must be reachable by keyboard */}
        <pre tabIndex={0}>
          {text
            .trimEnd()
            .split("\n")
            .map((line, index) => (
              <div key={index}>
                <LogText runs={parseAnsi(line)} />
                {"\n"}
              </div>
            ))}
        </pre>
      </details>
    </div>
  );
}

function sentenceCase(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
