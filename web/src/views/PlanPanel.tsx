import type { ComponentChildren, TargetedInputEvent } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { dryRun, post } from "../live/api";
import { Prose } from "../parts/Prose";
import { Wide } from "../parts/Wide";
import {
  FIRST_TYPED,
  findingsOf,
  type Inquiry,
  isSameInquiry,
  planRequest,
  type Typed,
} from "../state/inquiry";
import { formatBytes, formatDuration } from "../text/format";
import type { Plan, PlanBatch, PlanOption } from "../wire";

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
  const wrong = findingsOf(typed);
  const canPredict = !isBusy && isReady && profile !== null && Object.keys(wrong).length === 0;
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
    wrong: wrong[name],
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
        <Entry label="Network of a worker, Gbit/s" {...entry("bandwidth")} disabled={isMeasured} />
        <Entry label="Latency, ms" {...entry("latency")} disabled={isMeasured} />
        <Entry label="Network measured by job" type="text" placeholder="name or id" {...entry("measuredBy")}>
          One of the recipe <code>measure-links</code>, in place of the two figures.
        </Entry>
        <Entry label="Noise scale, samples" placeholder="not needed" {...entry("noise")}>
          As a job like it charts with <code>batch.noise_every</code>; compares batches, too.
        </Entry>
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

interface EntryProps {
  label: string;
  type?: "number" | "text";
  value: string;
  placeholder?: string;
  disabled?: boolean;
  onInput: (event: TargetedInputEvent<HTMLInputElement>) => void;
  onKeyDown: (event: KeyboardEvent) => void;
  /** What is wrong with it. */
  wrong: string | undefined;
  /** What it means. */
  children?: ComponentChildren;
}

function Entry({ label, type = "number", wrong, children, ...input }: EntryProps) {
  const id = useId();
  const common = { ...input, id, "aria-invalid": !!wrong, "aria-describedby": `${id}-about ${id}-wrong` };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {type === "number" ? (
        <input type="number" min="0" step="any" {...common} />
      ) : (
        <input type="text" {...common} />
      )}
      <small id={`${id}-about`} class="soft">
        {children}
      </small>
      <small id={`${id}-wrong`} class="error">
        {wrong}
      </small>
    </div>
  );
}

function Answer({ plan }: { plan: Plan }) {
  const [strategy, setStrategy] = useState(plan.recommended.name);
  const strategies = [...new Set(plan.options.map((one) => one.name))];
  const section = useRef<HTMLElement>(null);
  useEffect(() => section.current?.scrollIntoView({ block: "nearest" }), []);
  return (
    <section aria-label="Plan" ref={section}>
      {plan.sentences.map((one) => (
        <p key={one}>
          <Prose text={one} />
        </p>
      ))}
      {strategies.length > 1 && (
        <label class="field">
          Strategy, by workers
          <select value={strategy} onChange={(event) => setStrategy(event.currentTarget.value)}>
            {strategies.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
      )}
      <Options
        caption={`${strategy}, by workers`}
        options={plan.options.filter((one) => one.name === strategy)}
        chosen={plan.recommended}
      />
      {plan.best.length > 1 && (
        <Options caption="The fastest of each strategy" options={plan.best} chosen={plan.recommended} />
      )}
      {plan.batches.length > 0 && <Batches batches={plan.batches} chosen={plan.recommended_batch} />}
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
            <dd class="soft">
              <Prose text={reason} />
            </dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

function Batches({ batches, chosen }: { batches: PlanBatch[]; chosen: PlanBatch | null }) {
  return (
    <Figures caption="Batches, each with the workers that pay for it" label="Batches" columns={OF_BATCHES}>
      {batches.map((one) => (
        <Row key={one.global_size} name={one.global_size} isChosen={one.global_size === chosen?.global_size}>
          <td>{one.num_microbatches}</td>
          <td>{one.workers}</td>
          <td>{Number(one.samples_per_s.toPrecision(3))}</td>
          <td>{one.worth.toFixed(2)}</td>
          <td>{one.progress.toFixed(2)}</td>
          <td title={HELD}>{memory(one.memory_bytes)}</td>
        </Row>
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
  "Compresses",
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
  chosen: PlanOption;
}) {
  return (
    <Figures caption={caption} columns={OF_OPTIONS}>
      {options.map((one) => (
        <Row
          key={`${one.name} ${one.workers}`}
          name={one.name}
          isChosen={one.name === chosen.name && one.workers === chosen.workers}
        >
          <td>{one.workers}</td>
          <td>{milliseconds(one.step_s)}</td>
          <td>{milliseconds(one.compute_s)}</td>
          <td>{milliseconds(one.exposed_s)}</td>
          <td>{milliseconds(one.codec_s)}</td>
          <td>{one.speedup.toFixed(2)}</td>
          <td>{formatBytes(Math.round(one.sent_bytes))}</td>
          <td title={HELD}>{memory(one.memory_bytes)}</td>
          <td>{one.binding}</td>
        </Row>
      ))}
    </Figures>
  );
}

interface RowProps {
  name: ComponentChildren;
  isChosen: boolean;
  children: ComponentChildren;
}

function Row({ name, isChosen, children }: RowProps) {
  return (
    <tr class={isChosen ? "recommended" : undefined}>
      <td>
        {name}
        {isChosen && ", recommended"}
      </td>
      {children}
    </tr>
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
