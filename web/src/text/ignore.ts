/** Which files of a working folder are packed: the rules of `rubato submit` (`rubato/packaging.py`). Pure. */

export const IGNORE_FILE = ".rubatoignore";

export const DEFAULT_IGNORES: readonly string[] = [
  ".git/",
  ".hg/",
  ".svn/",
  "__pycache__/",
  "*.py[cod]",
  ".venv/",
  "venv/",
  "node_modules/",
  ".mypy_cache/",
  ".pytest_cache/",
  ".ruff_cache/",
  ".ipynb_checkpoints/",
  ".DS_Store",
  ".env",
];

export interface IgnoreRule {
  pattern: RegExp;
  takesBack: boolean;
  foldersOnly: boolean;
}

/** Rules as in a .gitignore: `#` comments, `!` takes back, `/` anchors, a last `/` means folders, `*`, `?`, `**`. */
export function parseIgnoreLines(lines: readonly string[]): IgnoreRule[] {
  return lines.flatMap((line) => {
    let text = line.trim();
    if (text === "" || text.startsWith("#")) return [];
    const takesBack = text.startsWith("!");
    text = takesBack ? text.slice(1) : text;
    const foldersOnly = text.endsWith("/");
    text = text.replace(/\/+$/, "");
    if (text === "") return [];
    const body = translate(text.replace(/^\/+/, ""));
    const source = text.includes("/") ? body : `(?:[^]*/)?${body}`;
    return [{ pattern: new RegExp(`^(?:${source})$`), takesBack, foldersOnly }];
  });
}

/** Whether a file is left out, by itself or with a folder that it lies in. */
export function isIgnored(name: string, rules: readonly IgnoreRule[]): boolean {
  const parts = name.split("/");
  return parts.some((_, index) =>
    isPathIgnored(parts.slice(0, index + 1).join("/"), rules, index < parts.length - 1),
  );
}

/** Those that lie in no checkpoint of an earlier run: a folder such as `2-3000` with a manifest. */
export function outsideCheckpoints(names: readonly string[]): string[] {
  const manifest = /(?:^|\/)\d+-\d+\/(?=manifest\.json$)/;
  const folders = names
    .filter((name) => manifest.test(name))
    .map((name) => name.slice(0, -"manifest.json".length));
  return names.filter((name) => !folders.some((folder) => name.startsWith(folder)));
}

function isPathIgnored(name: string, rules: readonly IgnoreRule[], isFolder: boolean): boolean {
  let ignored = false;
  for (const rule of rules) {
    if ((isFolder || !rule.foldersOnly) && rule.pattern.test(name)) ignored = !rule.takesBack;
  }
  return ignored;
}

/** A glob as a regular expression; `*` and `?` stay within one folder, `**` crosses them. */
function translate(glob: string): string {
  let out = "";
  let position = 0;
  while (position < glob.length) {
    const end = glob[position] === "[" ? glob.indexOf("]", position + 2) : -1;
    if (glob.startsWith("**/", position)) {
      out += "(?:[^]*/)?";
      position += 3;
    } else if (glob.startsWith("**", position)) {
      out += "[^]*";
      position += 2;
    } else if (glob[position] === "*") {
      out += "[^/]*";
      position += 1;
    } else if (glob[position] === "?") {
      out += "[^/]";
      position += 1;
    } else if (end > 0) {
      const inside = glob
        .slice(position + 1, end)
        .replaceAll("\\", "\\\\")
        .replaceAll("[", "\\[");
      out += inside.startsWith("!") ? `[^${inside.slice(1)}]` : `[${inside}]`;
      position = end + 1;
    } else {
      out += (glob[position] ?? "").replace(/[\\^$.*+?()[\]{}|/-]/, "\\$&");
      position += 1;
    }
  }
  return out;
}
