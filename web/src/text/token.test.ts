import { expect, it } from "vitest";
import { at } from "../testing";
import { isGood } from "./token";

it("counts neither revoked nor expired tokens as good", () => {
  const now = Date.parse(at(60));
  expect(isGood({ revoked_at: null, expires_at: null }, now)).toBe(true);
  expect(isGood({ revoked_at: null, expires_at: at(61) }, now)).toBe(true);
  expect(isGood({ revoked_at: null, expires_at: at(60) }, now)).toBe(false);
  expect(isGood({ revoked_at: at(1), expires_at: null }, now)).toBe(false);
});
