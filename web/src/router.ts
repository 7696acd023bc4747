/**
 * Paths of the page: `/` lists the jobs, `/jobs/{id}#tab` shows one, `/compare?jobs=` several, `/cluster` the machines,
 * `/settings` the rest.
 */

import { useEffect, useState } from "preact/hooks";
import { type Comparison, readComparison } from "./state/compare";

export const TABS = ["overview", "workers", "logs", "events", "checkpoints", "spec", "code"] as const;
export type Tab = (typeof TABS)[number];

export type Route =
  | { view: "jobs" }
  | { view: "cluster" }
  | { view: "settings" }
  | { view: "job"; id: string; tab: Tab }
  | { view: "compare"; wanted: Comparison }
  | { view: "unknown"; path: string };

export function parseRoute(path: string, hash: string, search = ""): Route {
  if (["/", "/jobs", "/jobs/", "/sign-in"].includes(path)) return { view: "jobs" };
  if (/^\/cluster\/?$/.test(path)) return { view: "cluster" };
  if (/^\/settings\/?$/.test(path)) return { view: "settings" };
  if (/^\/compare\/?$/.test(path)) return { view: "compare", wanted: readComparison(search) };
  const match = /^\/jobs\/([^/]+)\/?$/.exec(path);
  const id = match && decoded(match[1] ?? "");
  if (id === null) return { view: "unknown", path };
  const tab = TABS.find((name) => `#${name}` === hash) ?? "overview";
  return { view: "job", id, tab };
}

/** Null: it is nothing that a browser has encoded. */
function decoded(part: string): string | null {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}

/** The same for all that is one page: the tabs of a job, and comparisons, which change in place. */
export function pageOf(route: Route): string {
  if (route.view === "job") return jobPath(route.id);
  return route.view === "unknown" ? route.path : route.view;
}

export function jobPath(id: string, tab: Tab = "overview"): string {
  return `/jobs/${encodeURIComponent(id)}${tab === "overview" ? "" : `#${tab}`}`;
}

/** Go to a path of the page. */
export function navigate(path: string): void {
  history.pushState(null, "", path);
  window.dispatchEvent(new PopStateEvent("popstate"));
}

/** Say in the address what is looked at, as a step that "back" does not take. */
export function restate(path: string): void {
  history.replaceState(null, "", path);
  window.dispatchEvent(new PopStateEvent("popstate"));
}

/** Whether one came to the present page from another one, and nothing there has taken the focus yet. */
let hasArrived = false;

export function takeArrival(): boolean {
  const arrived = hasArrived;
  hasArrived = false;
  return arrived;
}

/** The present route; links inside the page change it without a reload. */
export function useRoute(): Route {
  const read = () => parseRoute(location.pathname, location.hash, location.search);
  const [route, setRoute] = useState(read);
  useEffect(() => {
    let page = pageOf(read());
    const update = () => {
      const next = read();
      if (pageOf(next) !== page) hasArrived = true;
      page = pageOf(next);
      setRoute(next);
    };
    const onClick = (event: MouseEvent) => {
      const href = inPageLink(event);
      if (href === null) return;
      event.preventDefault();
      const isNewPage = new URL(href).pathname !== location.pathname;
      navigate(href);
      if (isNewPage) window.scrollTo(0, 0);
    };
    window.addEventListener("popstate", update);
    document.addEventListener("click", onClick);
    return () => {
      window.removeEventListener("popstate", update);
      document.removeEventListener("click", onClick);
    };
  }, []);
  return route;
}

/** The address of a plain click on a link to the page itself; null for all that the browser should do. */
function inPageLink(event: MouseEvent): string | null {
  if (
    event.defaultPrevented ||
    event.button !== 0 ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    event.altKey
  ) {
    return null;
  }
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return null;
  return parseRoute(link.pathname, link.hash, link.search).view === "unknown" ? null : link.href;
}
