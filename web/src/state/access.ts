/** What a person may do, as far as the page shows it; the service decides. Pure. */

import type { Me } from "../wire";

const CHANGING: readonly string[] = ["editor", "admin"];

/** Submit to a project, and change its jobs. */
export function mayChange(me: Me, project: string): boolean {
  return me.role === "admin" || CHANGING.includes(me.projects[project] ?? "");
}

/** The same of any project. */
export function mayChangeAny(me: Me): boolean {
  return me.role === "admin" || Object.values(me.projects).some((role) => CHANGING.includes(role));
}
