import { useState } from "preact/hooks";
import { Icon } from "./Icon";

/** Copies `text`; falls back to selecting it where the browser has no clipboard (plain http). */
export function Copy({ text, label }: { text: string; label: string }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyBySelection(text);
    }
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button
      type="button"
      class="icon-button"
      onClick={() => void copy()}
      aria-label={isDone ? "Copied" : label}
      title={label}
    >
      <Icon name={isDone ? "check" : "copy"} />
    </button>
  );
}

function copyBySelection(text: string): void {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
