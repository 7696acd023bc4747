/** Terminal output as plain runs of text with a colour: what tqdm, rich and pytest write, made readable. */

export interface AnsiRun {
  text: string;
  /** A class of logs.css such as "ansi-red", or "" for plain. */
  className: string;
}

const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
// As `rubato.wire.terminal` at the service: CSI sequences; titles, links and the like; other escapes and cut ones; then
// control characters but for tab and newline.
const ESCAPES =
  /(?:\u001b\[|\u009b)[0-?]*[ -/]*[@-~]|(?:\u001b[PX\]^_]|[\u0090\u0098\u009d-\u009f])[^\u0000-\u001f\u007f-\u009f]*(?:\u0007|\u001b\\|\u009c)|\u001b[ -/]*[0-~]?|[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
const SGR = /^\u001b\[([0-9;]*)m$/;

interface Style {
  colour: string;
  isBold: boolean;
  isDim: boolean;
}

const PLAIN: Style = { colour: "", isBold: false, isDim: false };

/** Split a line into runs; everything that is not colour or weight is dropped. */
export function parseAnsi(line: string): AnsiRun[] {
  // A progress bar redraws itself after a carriage return: only the last drawing is worth showing.
  const drawn = line.replace(/\r+$/, "");
  const visible = drawn.slice(drawn.lastIndexOf("\r") + 1);
  const runs: AnsiRun[] = [];
  let style = PLAIN;
  let from = 0;
  for (const match of visible.matchAll(ESCAPES)) {
    addRun(runs, visible.slice(from, match.index), style);
    from = match.index + match[0].length;
    const codes = SGR.exec(match[0]);
    if (codes) style = applyCodes(style, (codes[1] ?? "").split(";").map(Number));
  }
  addRun(runs, visible.slice(from), style);
  return runs;
}

/** What a reader sees of a line, without its colours: what a search looks at, here as at the service. */
export function plainText(line: string): string {
  return line.replace(ESCAPES, "");
}

function addRun(runs: AnsiRun[], text: string, style: Style): void {
  if (text) runs.push({ text, className: classOf(style) });
}

function classOf(style: Style): string {
  const names = [
    style.colour && `ansi-${style.colour}`,
    style.isBold && "ansi-bold",
    style.isDim && "ansi-dim",
  ];
  return names.filter(Boolean).join(" ");
}

function applyCodes(style: Style, codes: number[]): Style {
  let next = style;
  for (let index = 0; index < codes.length; index += 1) {
    const code = codes[index] ?? 0;
    if (code === 38 || code === 48) {
      // 256 colours take two more numbers, true colour four; both are dropped.
      index += codes[index + 1] === 5 ? 2 : 4;
      continue;
    }
    next = applyCode(next, code);
  }
  return next;
}

function applyCode(style: Style, code: number): Style {
  if (code === 0) return PLAIN;
  if (code === 1) return { ...style, isBold: true };
  if (code === 2) return { ...style, isDim: true };
  if (code === 22) return { ...style, isBold: false, isDim: false };
  if (code === 39) return { ...style, colour: "" };
  if (code >= 30 && code <= 37) return { ...style, colour: COLOURS[code - 30] ?? "" };
  if (code >= 90 && code <= 97) return { ...style, colour: COLOURS[code - 90] ?? "" };
  return style;
}
