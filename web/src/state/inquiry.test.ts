import { describe, expect, it } from "vitest";
import { FIRST_TYPED, findingsOf, type Inquiry, isSameInquiry, planRequest } from "./inquiry";

const inquiry: Inquiry = { ...FIRST_TYPED, text: "name: a\n", profile: { layers: [] } };

describe("isSameInquiry", () => {
  it.each<Partial<Inquiry>>([
    { text: "name: b\n" },
    { profile: { layers: [] } },
    { bandwidth: "1" },
    { latency: "1" },
    { measuredBy: "links" },
    { noise: "100" },
  ])("is another one with %j", (changed) => {
    expect(isSameInquiry(inquiry, { ...inquiry })).toBe(true);
    expect(isSameInquiry(inquiry, { ...inquiry, ...changed })).toBe(false);
  });
});

describe("findingsOf", () => {
  it.each(["", " ", "0", "-1", "fast", "1e13"])("asks for a bandwidth in place of %j", (bandwidth) => {
    expect(findingsOf({ ...FIRST_TYPED, bandwidth })).toEqual({
      bandwidth: expect.stringContaining("in Gbit/s"),
    });
    expect(findingsOf({ ...FIRST_TYPED, bandwidth, measuredBy: "links" })).toEqual({});
  });

  it.each(["", "-1", "short"])("asks for a latency in place of %j", (latency) => {
    expect(findingsOf({ ...FIRST_TYPED, latency })).toEqual({
      latency: expect.stringContaining("of milliseconds"),
    });
  });

  it("takes no latency at all, and no noise scale, but none of 0", () => {
    expect(findingsOf({ ...FIRST_TYPED, latency: "0", noise: " " })).toEqual({});
    expect(findingsOf({ ...FIRST_TYPED, noise: "0" })).toEqual({ noise: expect.stringContaining("above 0") });
  });
});

describe("planRequest", () => {
  const { profile } = inquiry;

  it("tells the network in seconds and bytes", () => {
    const link = { latency_s: 1e-4, bytes_per_s: 1.25e9 };
    expect(planRequest(inquiry, { name: "a" })).toEqual({ spec: { name: "a" }, profile, link });
  });

  it("leaves the network to the job that measured it, and tells the noise where it is known", () => {
    expect(planRequest({ ...inquiry, measuredBy: " links ", noise: "300" }, {})).toEqual({
      spec: {},
      profile,
      links_of: "links",
      noise_scale: 300,
    });
  });
});
