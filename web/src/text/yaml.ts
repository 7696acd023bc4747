/** Plain JSON data as YAML that people read and `rubato submit` takes. */

/** What YAML would read as something other than a string, or not at all. */
const NEEDS_QUOTES =
  /^$|^[\s\-?:,[\]{}#&*!|>'"%@`]|:\s|\s#|:$|\s$|[\n\t]|^(true|false|null|yes|no|on|off|~)$|^[-+.\d]/i;

export function toYaml(data: unknown, indent = ""): string {
  if (Array.isArray(data)) return data.map((item) => `${indent}- ${inlineOrBlock(item, indent)}`).join("\n");
  if (typeof data === "object" && data !== null) {
    return Object.entries(data)
      .map(([key, value]) => `${indent}${scalar(key)}:${blockOf(value, indent)}`)
      .join("\n");
  }
  return indent + scalar(data);
}

function blockOf(value: unknown, indent: string): string {
  if (isFilled(value)) return `\n${toYaml(value, `${indent}  `)}`;
  return ` ${inline(value)}`;
}

function inlineOrBlock(item: unknown, indent: string): string {
  return isFilled(item) ? toYaml(item, `${indent}  `).trimStart() : inline(item);
}

function isFilled(value: unknown): boolean {
  return typeof value === "object" && value !== null && Object.keys(value).length > 0;
}

function inline(value: unknown): string {
  if (Array.isArray(value)) return "[]";
  if (typeof value === "object" && value !== null) return "{}";
  return scalar(value);
}

function scalar(value: unknown): string {
  if (typeof value !== "string") return String(value);
  return NEEDS_QUOTES.test(value) ? JSON.stringify(value) : value;
}
