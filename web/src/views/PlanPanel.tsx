import type { ComponentChildren, TargetedInputEvent } from "preact";
import { useState } from "preact/hooks";
import { dryRun, post } from "../live/api";
import { Wide } from "../parts/Wide";
import { FIRST_TYPED, type Inquiry, isSameInquiry, planRequest, type Typed } from "../state/inquiry";
import { formatBytes, formatDuration } from "../text/format";
import type { Plan, PlanOption } from "../wire";

interface PlanPanelProps {
  /** The spec, in YAML. */
  text: string;
  /** Whether it holds. */
  isReady: boolean;
}

/** How many workers are worth it, and which strategy: predicted from a profile of the program. */
export function PlanPanel({ text, isReady }: PlanPanelProps) {
  const [profile, setProfile] = useState<unknown>(null);
  const [typed, setTyped] = useState<Typed>(FIRST_TYPED);
  const [answer, setAnswer] = useState<{ asked: Inquiry; plan: Plan } | null>(null);
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const inquiry: Inquiry = { text, profile, ...typed };
  const isMeasured = typed.measuredBy.trim() !== "";
  const canPredict = !isBusy && isReady && profile !== null;
  const attempt = async (act: () => Promise<void>) => {
    setProblem("");
    setAnswer(null);
    setBusy(true);
    try {
      await act();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  const take = (file: File | undefined) =>
    attempt(async () => {
      setProfile(null);
      if (file) setProfile(JSON.parse(await file.text()));
    });
  const predict = () =>
    attempt(async () => {
      const { spec } = await dryRun(text);
      setAnswer({ asked: inquiry, plan: await post<Plan>("/plan", planRequest(inquiry, spec)) });
    });
  const entry = (name: keyof Typed) => ({
    value: typed[name],
    onInput: (event: TargetedInputEvent<HTMLInputElement>) =>
      setTyped({ ...typed, [name]: event.currentTarget.value }),
    // The form around would take it as its own, and submit the job.
    onKeyDown: (event: KeyboardEvent) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      if (canPredict) void predict();
    },
  });
  const shown = answer && isSameInquiry(answer.asked, inquiry) ? answer.plan : null;
  return (
    <details
      class="plan"
      onToggle={(event) =>
        event.target === event.currentTarget &&
        event.currentTarget.open &&
        event.currentTarget.scrollIntoView({ block: "start" })
      }
    >
      <summary>How many workers are worth it?</summary>
      <p class="soft">
        Run <code>rubato profile job.yaml</code> on a machine like those that will train, and bring what it
        wrote.
      </p>
      <div class="fields">
        <label class="field">
          Profile
          <input
            type="file"
            accept="application/json,.json"
            onChange={(event) => void take(event.currentTarget.files?.[0])}
          />
        </label>
        <label class="field">
          Network of a worker, Gbit/s
          <input type="number" min="0" step="any" {...entry("bandwidth")} disabled={isMeasured} />
        </label>
        <label class="field">
          Latency, ms
          <input type="number" min="0" step="any" {...entry("latency")} disabled={isMeasured} />
        </label>
        <label class="field">
          Network measured by job
          <input type="text" placeholder="name or id" {...entry("measuredBy")} />
          <small class="soft">
            One of the recipe <code>measure-links</code>, in place of the two figures.
          </small>
        </label>
        <label class="field">
          Noise scale, samples
          <input type="number" min="0" step="any" placeholder="not needed" {...entry("noise")} />
          <small class="soft">
            As a job like it charts with <code>batch.noise_every</code>; compares batches, too.
          </small>
        </label>
      </div>
      <button type="button" class="button" disabled={!canPredict} onClick={() => void predict()}>
        Predict
      </button>
      <p class="error" role="alert">
        {problem}
      </p>
      {shown && <Answer plan={shown} />}
    </details>
  );
}

function Answer({ plan }: { plan: Plan }) {
  return (
    <section aria-label="Plan" ref={(one) => one?.scrollIntoView({ block: "nearest" })}>
      {plan.sentences.map((one) => (
        <p key={one}>{one}</p>
      ))}
      <Options
        caption={`${plan.recommended.name}, by workers`}
        options={plan.by_workers}
        chosen={plan.recommended}
      />
      {plan.best.length > 1 && <Options caption="The fastest of each strategy" options={plan.best} />}
      {plan.batches.length > 0 && <Batches batches={plan.batches} />}
      {plan.refused.length > 0 && <Refused refused={plan.refused} />}
    </section>
  );
}

/** What was not considered, by reason. */
function Refused({ refused }: { refused: Plan["refused"] }) {
  const reasons = [...new Set(refused.map((one) => one.reason))];
  return (
    <details>
      <summary>Not considered: {refused.length}</summary>
      <dl class="refused">
        {reasons.map((reason) => (
          <div key={reason}>
            <dt>
              {refused
                .filter((one) => one.reason === reason)
                .map((one) => one.name)
                .join(", ")}
            </dt>
            <dd class="soft">{reason}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

function Batches({ batches }: { batches: Plan["batches"] }) {
  return (
    <Figures caption="Batches, each with the workers that pay for it" label="Batches" columns={OF_BATCHES}>
      {batches.map((one) => (
        <tr key={one.global_size}>
          <td>{one.global_size}</td>
          <td>{one.num_microbatches}</td>
          <td>{one.workers}</td>
          <td>{Number(one.samples_per_s.toPrecision(3))}</td>
          <td>{one.worth.toFixed(2)}</td>
          <td>{one.progress.toFixed(2)}</td>
          <td title={HELD}>{memory(one.memory_bytes)}</td>
        </tr>
      ))}
    </Figures>
  );
}

const HELD = "Of memory, a worker, besides the program, with what a pass keeps where the profile tells it";

const OF_BATCHES = [
  "Batch",
  "Microbatches",
  "Workers",
  "Samples a second",
  "A sample is worth",
  "Learns, times as fast",
  "Holds",
];

const OF_OPTIONS = [
  "Strategy",
  "Workers",
  "A step",
  "Computes",
  "Exchanges",
  "Times one worker",
  "Sends a step",
  "Holds",
  "What binds",
];

function Options({
  caption,
  options,
  chosen,
}: {
  caption: string;
  options: PlanOption[];
  chosen?: PlanOption;
}) {
  return (
    <Figures caption={caption} columns={OF_OPTIONS}>
      {options.map((one) => (
        <tr
          key={`${one.name} ${one.workers}`}
          class={one.workers === chosen?.workers ? "recommended" : undefined}
        >
          <td>{one.name}</td>
          <td>{one.workers}</td>
          <td>{milliseconds(one.step_s)}</td>
          <td>{milliseconds(one.compute_s)}</td>
          <td>{milliseconds(one.exposed_s + one.codec_s)}</td>
          <td>{one.speedup.toFixed(2)}</td>
          <td>{formatBytes(Math.round(one.sent_bytes))}</td>
          <td title={HELD}>{memory(one.memory_bytes)}</td>
          <td>{one.binding}</td>
        </tr>
      ))}
    </Figures>
  );
}

interface FiguresProps {
  caption: string;
  label?: string;
  columns: string[];
  children: ComponentChildren;
}

function Figures({ caption, label = caption, columns, children }: FiguresProps) {
  return (
    <Wide label={label}>
      <table>
        <caption>{caption}</caption>
        <thead>
          <tr>
            {columns.map((one) => (
              <th scope="col" key={one}>
                {one}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </Wide>
  );
}

function memory(bytes: number): string {
  return bytes ? formatBytes(bytes) : "–";
}

function milliseconds(seconds: number): string {
  return seconds < 0.9995 ? `${Number((1e3 * seconds).toPrecision(3))} ms` : formatDuration(seconds);
}
