/** What is told of a failure, each thing once. Pure. */

import { plainText } from "../text/ansi";
import type { AdvisedFailure } from "../wire";

/** The end of a message that says what the advice says again. */
const ADVICE_IN_MESSAGE =
  / (?:The traceback names the line; mend the program|Mend the spec or the program) and submit again\.$/;

/** What happened, without what to do where the advice has it. */
export function messageOf(failure: AdvisedFailure): string {
  const isAdvised = failure.advice.includes("mend the program and submit again");
  return isAdvised ? failure.message.replace(ADVICE_IN_MESSAGE, "") : failure.message;
}

/** What to do; a checkpoint is a way on only where there is one. */
export function adviceOf(failure: AdvisedFailure, hasCheckpoint: boolean): string {
  if (!hasCheckpoint) {
    return failure.advice
      .replace(/; checkpoint\.resume_from [^.;]*(?=\.)/, "")
      .replace(" with checkpoint.resume_from", "");
  }
  if (failure.advice.includes("checkpoint.resume_from")) return failure.advice;
  return `${failure.advice} Checkpoints are kept: checkpoint.resume_from continues from one.`;
}

export interface Told {
  title: string;
  text: string;
}

/** The traceback and the last lines; where one holds the other, only the longer one. */
export function outputsOf(failure: AdvisedFailure): Told[] {
  const traceback = { title: "Traceback", text: failure.traceback ?? "" };
  const last = { title: "Last lines", text: (failure.last_output ?? []).join("\n") };
  const has = (whole: Told, part: Told) => plain(whole.text).includes(plain(part.text));
  const told = [traceback, last].filter(({ text }) => text.trim() !== "");
  if (told.length < 2) return told;
  if (has(traceback, last)) return [traceback];
  return has(last, traceback) ? [last] : told;
}

function plain(text: string): string {
  return text
    .split("\n")
    .map((line) => plainText(line).trimEnd())
    .join("\n")
    .trim();
}
