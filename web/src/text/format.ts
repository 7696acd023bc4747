/** Numbers and times as people read them. Pure; `now` is an argument. */

const THIN = "\u202f";
const HARD = "\u00a0";

/** As one word to the end of a line: what is between a figure and its unit does not break. */
function unbroken(text: string): string {
  return text.replaceAll(" ", HARD);
}

/** A whole number with thin spaces: 12 345. */
export function formatCount(value: number): string {
  return Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}

/** A measured value in about four significant digits: 0.3127, 1 204, 3.1e-7. */
export function formatValue(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return sign(value) + formatCount(size);
  if (size >= 100) return sign(value) + size.toFixed(1).replace(/\.0$/, "");
  if (size < 1e-3) return value.toExponential(2).replace("-", "−");
  return (
    sign(value) +
    size
      .toPrecision(4)
      .replace(/(\.\d*?)0+$/, "$1")
      .replace(/\.$/, "")
  );
}

function sign(value: number): string {
  return value < 0 ? "−" : "";
}

/** A duration in seconds: "41 ms", "1.3 s", "4 min 05 s", "2 h 10 min", "3 d 4 h". */
export function formatDuration(seconds: number): string {
  return unbroken(duration(seconds));
}

function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 0.001) return "0 ms";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 59.5) return `${Math.round(s)} s`;
  return longDuration(Math.round(s));
}

function longDuration(s: number): string {
  const minutes = Math.floor(s / 60);
  if (s < 3600) return s % 60 ? `${minutes} min ${String(s % 60).padStart(2, "0")} s` : `${minutes} min`;
  const hours = Math.floor(s / 3600);
  if (s < 86_400) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${Math.floor(hours / 24)} d`;
}

/** Seconds at a tick of an axis, all digits of it: "0", "2.5 ms", "1.5 s". */
export function formatTick(seconds: number): string {
  if (seconds === 0) return "0";
  return unbroken(seconds < 1 ? `${formatValue(seconds * 1000)} ms` : `${formatValue(seconds)} s`);
}

/** A duration in one unit, for narrow places: "41 ms", "12 s", "4 min", "2 h", "3 d". */
export function formatCoarse(seconds: number): string {
  return unbroken(coarse(seconds));
}

function coarse(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 59.5) return `${Math.round(s)} s`;
  if (s < 3570) return `${Math.round(s / 60)} min`;
  if (s < 86_400) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86_400)} d`;
}

/** How long ago: "now", "12 s ago". */
export function formatAgo(then: string, now: number): string {
  const seconds = (now - Date.parse(then)) / 1000;
  return unbroken(seconds < 1.5 ? "just now" : `${coarse(seconds)} ago`);
}

/** Seconds since the start of a chart as a clock: 0:07, 12:40, 1:02:09. */
export function formatElapsed(seconds: number): string {
  const s = Math.floor(seconds);
  const two = (value: number) => String(value).padStart(2, "0");
  const minutes = two(Math.floor(s / 60) % 60);
  return s < 3600
    ? `${Math.floor(s / 60)}:${two(s % 60)}`
    : `${Math.floor(s / 3600)}:${minutes}:${two(s % 60)}`;
}

/** The local time of day, with the day where it is not today. */
export function formatTime(time: string, now: number): string {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return time;
  const two = (value: number) => String(value).padStart(2, "0");
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date(now).toDateString()) return clock;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`;
}

/** A share of one in per cent, rounded down so that 100 % means all: "99.9 %". */
export function formatShare(share: number): string {
  return `${(Math.floor(share * 1000) / 10).toFixed(share === 1 ? 0 : 1)}${THIN}%`;
}

/** A size in bytes, as the command line prints it: "1.2 MB". */
export function formatBytes(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(unit === 1 && value >= 9.95 ? 0 : 1)}${HARD}${units[unit]}`;
}

/** "1 worker", "3 workers". */
export function plural(count: number, noun: string): string {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** The service's sentences begin small where they follow a name; alone they begin large. Names such as "w2" stay. */
export function sentence(text: string): string {
  return /^[a-z]+\b(?!-)/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
}

/** A code of the wire as words: `user_code_error` -> "user code error". */
export function words(code: string): string {
  return code.replaceAll("_", " ");
}
