import { MOST_COMPARED } from "../state/compare";
import type { XAxis } from "./data";

/** What the reader wants to see. */
export interface Choice {
  axis: XAxis;
  isSmooth: boolean;
  isLog: boolean;
  metrics: ReadonlySet<string>;
  /** A line for each, in the order in which they were chosen; none: all attempts as one line. */
  attempts: readonly number[];
}

const AXIS_NAMES: Record<XAxis, string> = { step: "Step", time: "Time", samples: "Samples" };

interface BoardBarProps {
  choice: Choice;
  axes: readonly XAxis[];
  names: string[];
  attempts: number[];
  onChoice: (choice: Choice) => void;
  onShowAll: (() => void) | null;
}

/** What the charts show, and over which axis. */
export function BoardBar({ choice, axes, names, attempts, onChoice, onShowAll }: BoardBarProps) {
  return (
    <div class="board-bar">
      <MetricChoice
        names={names}
        chosen={choice.metrics}
        onChange={(metrics) => onChoice({ ...choice, metrics })}
      />
      <span class="grow" />
      {onShowAll && (
        <button type="button" class="button small" onClick={onShowAll}>
          Show all
        </button>
      )}
      {attempts.length > 1 && (
        <AttemptChoice
          attempts={attempts}
          chosen={choice.attempts}
          onChange={(chosen) => onChoice({ ...choice, attempts: chosen })}
        />
      )}
      <Toggle
        label="Smooth"
        isOn={choice.isSmooth}
        onChange={(isSmooth) => onChoice({ ...choice, isSmooth })}
      />
      <Toggle label="Log" isOn={choice.isLog} onChange={(isLog) => onChoice({ ...choice, isLog })} />
      <fieldset class="segments" aria-label="Horizontal axis">
        {axes.map((axis) => (
          <button
            type="button"
            key={axis}
            aria-pressed={choice.axis === axis}
            onClick={() => onChoice({ ...choice, axis })}
          >
            {AXIS_NAMES[axis]}
          </button>
        ))}
      </fieldset>
    </div>
  );
}

interface MetricChoiceProps {
  names: string[];
  chosen: ReadonlySet<string>;
  onChange: (chosen: ReadonlySet<string>) => void;
}

function MetricChoice({ names, chosen, onChange }: MetricChoiceProps) {
  if (names.length < 2) return <h2 class="board-title">Training</h2>;
  const flip = (name: string) => {
    const next = new Set(chosen);
    if (!next.delete(name)) next.add(name);
    onChange(next);
  };
  return (
    <fieldset class="chips" aria-label="Metrics shown">
      {names.map((name) => (
        <button
          type="button"
          key={name}
          class="chip-toggle"
          aria-pressed={chosen.has(name)}
          onClick={() => flip(name)}
        >
          {name}
        </button>
      ))}
    </fieldset>
  );
}

interface AttemptChoiceProps {
  attempts: readonly number[];
  chosen: readonly number[];
  onChange: (chosen: readonly number[]) => void;
}

/** One attempt by itself, or several beside each other; where none is chosen, the line goes through all of them. */
function AttemptChoice({ attempts, chosen, onChange }: AttemptChoiceProps) {
  const flip = (attempt: number) =>
    onChange(chosen.includes(attempt) ? chosen.filter((other) => other !== attempt) : [...chosen, attempt]);
  return (
    <fieldset class="chips attempts" aria-label="Attempts compared">
      <span class="soft" aria-hidden="true">
        Attempts
      </span>
      {attempts.map((attempt) => (
        <button
          type="button"
          key={attempt}
          class="chip-toggle"
          aria-label={`Attempt ${attempt}`}
          aria-pressed={chosen.includes(attempt)}
          disabled={chosen.length >= MOST_COMPARED && !chosen.includes(attempt)}
          onClick={() => flip(attempt)}
        >
          {attempt}
        </button>
      ))}
    </fieldset>
  );
}

interface ToggleProps {
  label: string;
  isOn: boolean;
  onChange: (isOn: boolean) => void;
}

function Toggle({ label, isOn, onChange }: ToggleProps) {
  return (
    <button type="button" class="chip-toggle" aria-pressed={isOn} onClick={() => onChange(!isOn)}>
      {label}
    </button>
  );
}
