import { useState } from "preact/hooks";
import { Icon } from "./Icon";

/** Copies `text`; falls back to selecting it where the browser has no clipboard (plain http). Says only what is true. */
export function Copy({ text, label }: { text: string; label: string }) {
  const [outcome, setOutcome] = useState<"Copied" | "Not copied" | null>(null);
  const copy = async (button: HTMLElement) => {
    let isCopied = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      isCopied = copyBySelection(text, button);
    }
    setOutcome(isCopied ? "Copied" : "Not copied");
    setTimeout(() => setOutcome(null), 1500);
  };
  return (
    <button
      type="button"
      class="icon-button"
      onClick={(event) => void copy(event.currentTarget)}
      aria-label={outcome ?? label}
      title={label}
    >
      <Icon name={outcome === null ? "copy" : outcome === "Copied" ? "check" : "cross"} />
    </button>
  );
}

function copyBySelection(text: string, button: HTMLElement): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  // What lies outside of an open dialog cannot be selected.
  (button.closest("dialog") ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  button.focus();
  return isCopied;
}
