import { describe, expect, it } from "vitest";
import { jobPath, pageOf, parseRoute } from "./router";
import { comparePath, NOTHING_COMPARED } from "./state/compare";

describe("routes", () => {
  it.each([
    ["/", "", { view: "jobs" }],
    ["/jobs", "", { view: "jobs" }],
    ["/jobs/job_1", "", { view: "job", id: "job_1", tab: "overview" }],
    ["/jobs/job_1/", "#logs", { view: "job", id: "job_1", tab: "logs" }],
    ["/jobs/my%20job", "#nonsense", { view: "job", id: "my job", tab: "overview" }],
    ["/cluster", "", { view: "cluster" }],
    ["/settings", "", { view: "settings" }],
    ["/compare/", "", { view: "compare", wanted: NOTHING_COMPARED }],
    ["/jobs/%zz", "", { view: "unknown", path: "/jobs/%zz" }],
    ["/elsewhere", "", { view: "unknown", path: "/elsewhere" }],
  ])("%s%s", (path, hash, route) => {
    expect(parseRoute(path, hash)).toEqual(route);
  });

  it.each([
    ["/jobs/job_1", "/jobs/job_1#logs", true],
    ["/compare?jobs=a", "/compare?jobs=a,b", true],
    ["/", "/jobs/", true],
    ["/jobs/job_1", "/jobs/job_2", false],
    ["/jobs/job_1", "/", false],
    ["/elsewhere", "/nowhere", false],
  ])("%s and %s are one page: %s", (one, other, isOne) => {
    const page = (path: string) => {
      const { pathname, hash, search } = new URL(path, "http://localhost");
      return pageOf(parseRoute(pathname, hash, search));
    };
    expect(page(one) === page(other)).toBe(isOne);
  });

  it("come back from the path they make", () => {
    const url = new URL(jobPath("a/b c", "events"), "http://localhost");
    expect(parseRoute(url.pathname, url.hash)).toEqual({ view: "job", id: "a/b c", tab: "events" });
    expect(jobPath("job_1")).toBe("/jobs/job_1");
    const wanted = { ...NOTHING_COMPARED, jobs: ["job_1", "job_2"] };
    const comparison = new URL(comparePath(wanted), "http://localhost");
    expect(parseRoute(comparison.pathname, "", comparison.search)).toEqual({ view: "compare", wanted });
  });
});
