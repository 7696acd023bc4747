/** Light, dark, or what the system says. The choice is kept in this browser. */

import { useEffect, useState } from "preact/hooks";

export type ThemeChoice = "system" | "light" | "dark";

const KEY = "rubato-theme";
const NEXT: Record<ThemeChoice, ThemeChoice> = { system: "light", light: "dark", dark: "system" };

function stored(): ThemeChoice {
  const theme = document.documentElement.dataset.theme;
  return theme === "light" || theme === "dark" ? theme : "system";
}

function apply(choice: ThemeChoice): void {
  if (choice === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  try {
    if (choice === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, choice);
  } catch {
    // Storage may be forbidden; the choice then lasts as long as the page.
  }
}

export interface Theme {
  choice: ThemeChoice;
  /** What is shown: charts are drawn again when it changes. */
  shown: "light" | "dark";
  change: () => void;
}

export function useTheme(): Theme {
  const [choice, setChoice] = useState(stored);
  const [isSystemDark, setSystemDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const onChange = () => setSystemDark(query.matches);
    query.addEventListener("change", onChange);
    return () => query.removeEventListener("change", onChange);
  }, []);
  const change = () => {
    apply(NEXT[choice]);
    setChoice(NEXT[choice]);
  };
  return { choice, shown: choice === "system" ? (isSystemDark ? "dark" : "light") : choice, change };
}
