import { useId } from "preact/hooks";
import type { FieldShape } from "../state/schema";
import { Prose } from "./Prose";

interface FieldProps {
  /** As the spec names it. */
  name: string;
  shape: FieldShape;
  value: string;
  onChange: (value: string) => void;
  /** What is wrong with it. */
  findings: readonly string[];
  /** Names to choose from, which may be left. */
  suggestions?: readonly string[];
}

/** One field of a spec: its name, an input of its kind with the default as placeholder, what it means, what is wrong. */
export function Field({ name, shape, value, onChange, findings, suggestions }: FieldProps) {
  const id = useId();
  const common = {
    id,
    "aria-invalid": findings.length > 0,
    "aria-describedby": `${id}-about ${id}-wrong`,
  };
  return (
    <div class={`field${shape.kind === "pairs" ? " wide" : ""}`}>
      <label for={id}>
        <code>{name}</code>
      </label>
      {shape.kind === "choice" || shape.kind === "flag" ? (
        <select {...common} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
          <option value="">{shape.standard} (default)</option>
          {(shape.kind === "flag" ? ["true", "false"] : shape.choices)
            .filter((one) => one !== shape.standard)
            .map((one) => (
              <option key={one}>{one}</option>
            ))}
        </select>
      ) : shape.kind === "pairs" ? (
        <textarea
          {...common}
          rows={2}
          spellcheck={false}
          placeholder={"NAME=value\nANOTHER=value"}
          value={value}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      ) : (
        <input
          {...common}
          type="text"
          inputMode={shape.kind === "number" ? "decimal" : "text"}
          autocomplete="off"
          spellcheck={false}
          list={suggestions && `${id}-list`}
          placeholder={shape.standard}
          value={value}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      )}
      {suggestions && (
        <datalist id={`${id}-list`}>
          {suggestions.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
      )}
      <small id={`${id}-about`} class="soft">
        <Prose text={shape.about} />
      </small>
      <small id={`${id}-wrong`} class="error">
        {findings.join(" ")}
      </small>
    </div>
  );
}
