import { describe, expect, it } from "vitest";
import { makeJob } from "../testing";
import { patchOf, wishesOf } from "./change";

const job = makeJob({
  labels: { team: "vision", run: "a=b" },
  spec: { scheduling: { priority: 50 } },
  min_workers: 2,
  max_workers: 8,
});

describe("wishesOf", () => {
  it("fills the form in as the job stands, which is then no change", () => {
    const wishes = wishesOf(job);
    expect(wishes).toEqual({ priority: "50", min: "2", max: "8", labels: "team=vision\nrun=a=b" });
    expect(patchOf(job, wishes)).toEqual({});
  });
});

describe("patchOf", () => {
  it("leaves labels that nobody touched as they are, also where they could not be typed", () => {
    const odd = { ...job, labels: { note: "ends in a space ", text: "two\nlines" } };
    const { labels } = wishesOf(odd);
    expect(patchOf(odd, { priority: "90", labels })).toEqual({ scheduling: { priority: 90 } });
    expect(patchOf(odd, { labels: labels.replaceAll("\n", "\r\n") })).toEqual({});
  });

  it("holds what was changed only", () => {
    expect(patchOf(job, { priority: "90" })).toEqual({ scheduling: { priority: 90 } });
    expect(patchOf(job, { ...wishesOf(job), max: "4" })).toEqual({ workers: { max: 4 } });
    expect(patchOf(job, { min: "1", max: "16" })).toEqual({ workers: { min: 1, max: 16 } });
  });

  it("takes labels away, sets others, and leaves the rest", () => {
    expect(patchOf(job, { labels: "run=c\n\n  team = vision \nnote=" }).labels).toEqual({
      run: "c",
      note: "",
    });
    expect(patchOf(job, { labels: "" }).labels).toEqual({ team: null, run: null });
    expect(() => patchOf(job, { labels: "vision" })).toThrow("“vision” is not of the form team=vision");
  });
});
