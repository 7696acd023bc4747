import type { MetricRow } from "../wire";
import type { XAxis } from "./data";

/** What the reader wants to see. */
export interface Choice {
  axis: XAxis;
  isSmooth: boolean;
  isLog: boolean;
  metrics: ReadonlySet<string>;
  /** Null: all attempts. */
  attempt: number | null;
}

const AXIS_NAMES: Record<XAxis, string> = { step: "Step", time: "Time", samples: "Samples" };

/** The attempts that still have rows: of a step that was trained again the service keeps the last. */
export function attemptsOf(rows: readonly MetricRow[]): number[] {
  return [...new Set(rows.map((row) => row.attempt))].sort((a, b) => a - b);
}

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
        <select
          class="attempt-choice"
          aria-label="Attempt shown"
          value={choice.attempt ?? ""}
          onChange={({ currentTarget: { value } }) =>
            onChoice({ ...choice, attempt: value ? Number(value) : null })
          }
        >
          <option value="">All attempts</option>
          {attempts.map((attempt) => (
            <option key={attempt} value={attempt}>
              Attempt {attempt}
            </option>
          ))}
        </select>
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
