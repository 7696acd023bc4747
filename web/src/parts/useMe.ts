import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { mayChange, mayChangeAny } from "../state/access";
import type { Me } from "../wire";

/** Who is signed in. */
export const WhoAmI = createContext<Me>({ user: "", role: "user", projects: {} });

/** Whether the one who is signed in may change the jobs of a project. */
export function useMayChange(project: string): boolean {
  return mayChange(useContext(WhoAmI), project);
}

/** Whether there is a project that they may submit to. */
export function useMaySubmit(): boolean {
  return mayChangeAny(useContext(WhoAmI));
}
