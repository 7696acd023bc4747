import type { AnsiRun } from "../text/ansi";

/** Runs of terminal text; `needle` (lower case) is marked where it occurs. */
export function LogText({ runs, needle = "" }: { runs: AnsiRun[]; needle?: string }) {
  return (
    <>
      {runs.map((run, index) => (
        <span key={index} class={run.className || undefined}>
          {needle ? marked(run.text, needle) : run.text}
        </span>
      ))}
    </>
  );
}

function marked(text: string, needle: string) {
  const parts = [];
  let from = 0;
  for (let at = text.toLowerCase().indexOf(needle); at >= 0; at = text.toLowerCase().indexOf(needle, from)) {
    parts.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + needle.length)}</mark>);
    from = at + needle.length;
  }
  return [...parts, text.slice(from)];
}
