import { describe, expect, it } from "vitest";
import { describeProblem } from "./api";

describe("describeProblem", () => {
  it("shows the detail and every finding once", () => {
    const error = describeProblem(422, {
      detail: "The spec does not hold.",
      code: "invalid_spec",
      errors: [
        { path: "workers.max", message: "must be at least 1" },
        { path: "", message: "The spec does not hold." },
      ],
    });
    expect(error.message).toBe("The spec does not hold. workers.max: must be at least 1");
    expect(error.code).toBe("invalid_spec");
    expect(error.findings[0]).toEqual({ path: "workers.max", message: "must be at least 1" });
  });

  it("has something to say about an answer that is no problem document", () => {
    expect(describeProblem(502, null).message).toBe("The service answered with status 502.");
    expect(describeProblem(500, "<html>").status).toBe(500);
  });
});
