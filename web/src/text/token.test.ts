import { describe, expect, it } from "vitest";
import { at } from "../testing";
import { costOf, isGood, isHomes } from "./token";

it("counts neither revoked nor expired tokens as good", () => {
  const now = Date.parse(at(60));
  expect(isGood({ revoked_at: null, expires_at: null }, now)).toBe(true);
  expect(isGood({ revoked_at: null, expires_at: at(61) }, now)).toBe(true);
  expect(isGood({ revoked_at: null, expires_at: at(60) }, now)).toBe(false);
  expect(isGood({ revoked_at: at(1), expires_at: null }, now)).toBe(false);
});

it("knows the home's own token by a name that no user can have", () => {
  expect(isHomes({ user: "admin" })).toBe(true);
  expect(isHomes({ user: "ada" })).toBe(false);
});

describe("what revoking costs", () => {
  const cost = (fields: Partial<Parameters<typeof costOf>[0]>, user = "ada") =>
    costOf({ name: "laptop", role: "user", user: null, cluster: null, ...fields }, { user }).join(" ");

  it("says which agent is refused", () => {
    expect(cost({ role: "cluster", cluster: "edge" })).toContain("The agent of the cluster edge is refused");
    expect(cost({ role: "cluster", cluster: "edge" })).not.toContain("next start");
    expect(cost({ role: "cluster", name: "cluster" })).toMatch(/Every agent.* cluster-token of its home/);
  });

  it("says that metrics are read no more", () => {
    expect(cost({ role: "scraper" })).toContain("scraping stops");
  });

  it("says that one is signed out, as far as that is known", () => {
    expect(cost({ role: "admin", name: "admin" }, "admin")).toContain("you are signed out at once");
    expect(cost({ role: "admin", name: "admin" })).not.toContain("you are signed out");
    expect(cost({ user: "ada" })).toContain("If this page is one of them");
    expect(cost({ user: "bob" })).not.toContain("this page");
  });
});
