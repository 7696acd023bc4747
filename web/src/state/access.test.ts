import { describe, expect, it } from "vitest";
import { mayChange, mayChangeAny } from "./access";

const viewer = { user: "vera", role: "user", projects: { vision: "viewer" } };
const editor = { user: "ed", role: "user", projects: { vision: "editor", speech: "viewer", text: "admin" } };

describe("mayChange", () => {
  it("is for editors and admins of the project, and for admins of the service", () => {
    expect(mayChange(viewer, "vision")).toBe(false);
    expect(["vision", "speech", "text", "other"].map((project) => mayChange(editor, project))).toEqual([
      true,
      false,
      true,
      false,
    ]);
    expect(mayChange({ user: "root", role: "admin", projects: {} }, "vision")).toBe(true);
  });
});

describe("mayChangeAny", () => {
  it("asks for one such project", () => {
    expect([viewer, editor].map(mayChangeAny)).toEqual([false, true]);
    expect(mayChangeAny({ user: "new", role: "user", projects: {} })).toBe(false);
    expect(mayChangeAny({ user: "root", role: "admin", projects: {} })).toBe(true);
  });
});
