import { afterEach, describe, expect, it, vi } from "vitest";
import { ApiError, describeProblem, get, getAll, postOnce, type Unanswered } from "./api";

describe("describeProblem", () => {
  it("shows the detail and every finding once", () => {
    const error = describeProblem(422, {
      detail: "The spec is not valid.",
      code: "invalid_spec",
      errors: [
        { path: "workers.max", message: "must be at least 1" },
        { path: "", message: "The spec is not valid." },
      ],
    });
    expect(error.message).toBe("The spec is not valid. workers.max: must be at least 1");
    expect(error.code).toBe("invalid_spec");
    expect(error.findings[0]).toEqual({ path: "workers.max", message: "must be at least 1" });
  });

  it("has something to say about an answer that is no problem document", () => {
    expect(describeProblem(502, null).message).toBe("The service answered with status 502.");
    expect(describeProblem(500, "<html>").status).toBe(500);
  });
});

describe("a request", () => {
  afterEach(() => vi.unstubAllGlobals());

  it("reads a list to its end", async () => {
    const asked: string[] = [];
    vi.stubGlobal("fetch", (url: string) => {
      asked.push(url);
      const number = asked.length;
      const page = { items: [number], next_cursor: number < 3 ? `c/${number}` : null };
      return Promise.resolve(new Response(JSON.stringify(page)));
    });
    expect(await getAll("/tokens?limit=200")).toEqual([1, 2, 3]);
    const path = "/api/v1/tokens?limit=200";
    expect(asked).toEqual([path, `${path}&cursor=c%2F1`, `${path}&cursor=c%2F2`]);
  });

  it("goes under the same key again until it is answered", async () => {
    const keys: (string | null)[] = [];
    const answers = [null, new Response("{}"), new Response("{}"), null, new Response("{}")];
    vi.stubGlobal("fetch", (_: string, init: RequestInit) => {
      keys.push(new Headers(init.headers).get("Idempotency-Key"));
      const answer = answers.shift();
      return answer ? Promise.resolve(answer) : Promise.reject(new TypeError("network error"));
    });
    const unanswered: Unanswered = {};
    const send = (name: string) => postOnce(unanswered, "/jobs/job_1/clone", { name }).catch(() => null);
    for (const name of ["a", "a", "a", "b", "c"]) await send(name);
    expect(keys[1]).toBe(keys[0]);
    expect(new Set(keys).size).toBe(4);
  });

  it.each(["<html>", '{"id": "job'])(
    "fails as one that may be repeated where the reply is %s",
    async (text) => {
      vi.stubGlobal("fetch", () => Promise.resolve(new Response(text)));
      const error = await get("/jobs").catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(ApiError);
      expect(error).toMatchObject({ code: "unreadable", isTransient: true });
    },
  );
});
