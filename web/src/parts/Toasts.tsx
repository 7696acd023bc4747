import { type ComponentChildren, createContext } from "preact";
import { useCallback, useContext, useState } from "preact/hooks";
import { Icon } from "./Icon";

type Tone = "good" | "bad";
interface Toast {
  key: number;
  tone: Tone;
  text: string;
}

/** An error stays until it is closed; good news goes by itself. */
const GOOD_MS = 4000;

const Say = createContext<(tone: Tone, text: string) => void>(() => {});

/** Tell the user how something went. */
export function useSay(): (tone: Tone, text: string) => void {
  return useContext(Say);
}

let nextKey = 0;

export function ToastHost({ children }: { children: ComponentChildren }) {
  const [toasts, setToasts] = useState<Toast[]>([]);
  const close = useCallback(
    (key: number) => setToasts((before) => before.filter((toast) => toast.key !== key)),
    [],
  );
  const say = useCallback(
    (tone: Tone, text: string) => {
      nextKey += 1;
      const key = nextKey;
      setToasts((before) =>
        [...before.filter((toast) => toast.text !== text), { key, tone, text }].slice(-4),
      );
      if (tone === "good") setTimeout(() => close(key), GOOD_MS);
    },
    [close],
  );
  return (
    <Say.Provider value={say}>
      {children}
      <div class="toasts" aria-live="polite">
        {toasts.map((toast) => (
          <div
            key={toast.key}
            class={`toast toast-${toast.tone}`}
            role={toast.tone === "bad" ? "alert" : "status"}
          >
            <span>{toast.text}</span>
            <button type="button" class="icon-button" aria-label="Close" onClick={() => close(toast.key)}>
              <Icon name="cross" />
            </button>
          </div>
        ))}
      </div>
    </Say.Provider>
  );
}
