import { useState } from "preact/hooks";
import { useSay } from "./Toasts";

export interface Act {
  isBusy: boolean;
  /** Do it, and say how it went; `done` is the good news, or how the answer is told, or null where it shows by itself. */
  act: <T>(
    ask: () => Promise<T>,
    done: string | ((answer: T) => string) | null,
    then?: (answer: T) => void,
  ) => Promise<void>;
}

/** One request of the user at a time, and a word about each. */
export function useAct(): Act {
  const say = useSay();
  const [isBusy, setBusy] = useState(false);
  const act: Act["act"] = async (ask, done, then) => {
    setBusy(true);
    try {
      const answer = await ask();
      if (done !== null) say("good", typeof done === "string" ? done : done(answer));
      then?.(answer);
    } catch (error) {
      say("bad", error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return { isBusy, act };
}
