import { describe, expect, it } from "vitest";
import type { AdvisedFailure } from "../wire";
import { adviceOf, messageOf, outputsOf } from "./failure";

const failure = (fields: Partial<AdvisedFailure>): AdvisedFailure =>
  ({
    message: "TypeError: no (in step 3). The traceback names the line; mend the program and submit again.",
    advice:
      "Read the traceback or the last lines, mend the program and submit again; checkpoint.resume_from goes on from a checkpoint.",
    ...fields,
  }) as AdvisedFailure;

describe("a failure", () => {
  it("is told without the advice that follows", () => {
    expect(messageOf(failure({}))).toBe("TypeError: no (in step 3).");
    const other = failure({ advice: "Give it more memory." });
    expect(messageOf(other)).toBe(other.message);
  });

  it("is advised to go on from a checkpoint where there is one", () => {
    expect(adviceOf(failure({}), true)).toBe(failure({}).advice);
    expect(adviceOf(failure({}), false)).toBe(
      "Read the traceback or the last lines, mend the program and submit again.",
    );
    const lost = failure({ advice: "See why, then submit again with checkpoint.resume_from." });
    expect(adviceOf(lost, false)).toBe("See why, then submit again.");
    expect(adviceOf(failure({ advice: "Give it more." }), true)).toMatch(
      /^Give it more\. Checkpoints are kept/,
    );
  });

  it("shows what it wrote once", () => {
    const titles = (traceback: string, last_output: string[]) =>
      outputsOf(failure({ traceback, last_output })).map((one) => one.title);
    expect(titles("Traceback:\n  a\nError: b\n", ["Traceback:", "  a ", "\x1b[31mError: b\x1b[0m"])).toEqual([
      "Traceback",
    ]);
    expect(titles("a\nb", ["b"])).toEqual(["Traceback"]);
    expect(titles("b", ["a", "b"])).toEqual(["Last lines"]);
    expect(titles("a", ["b"])).toEqual(["Traceback", "Last lines"]);
    expect(titles("", [])).toEqual([]);
  });
});
