/** What the job spec's JSON Schema says of one field, as a form needs it. Pure. */

export interface Schema {
  type?: string | string[];
  enum?: (string | number | boolean)[];
  anyOf?: Schema[];
  $ref?: string;
  properties?: Record<string, Schema>;
  definitions?: Record<string, Schema>;
  items?: Schema;
  additionalProperties?: boolean | Schema;
  default?: unknown;
  description?: string;
}

/** How a field is filled in: `list` with commas, `pairs` as lines of NAME=value, `mixed` as a number or a text. */
export type Kind = "number" | "text" | "mixed" | "flag" | "choice" | "list" | "pairs";

export interface FieldShape {
  kind: Kind;
  /** Of a choice. */
  choices: string[];
  /** What holds where the field is left blank, as people write it. */
  standard: string;
  about: string;
}

/** The shape of a field by its path, such as `workers.initial`; null: the schema knows no such field. */
export function shapeOf(schema: Schema, path: string): FieldShape | null {
  let here: Schema | undefined = schema;
  for (const name of path.split(".")) {
    here = resolve(schema, here)?.properties?.[name];
  }
  if (here === undefined) return null;
  const options = (here.anyOf ?? [here]).map((one) => resolve(schema, one) ?? {});
  return {
    kind: kindOf(options),
    choices: options.flatMap((one) => one.enum ?? []).map(String),
    standard: asText(here.default),
    about: here.description ?? "",
  };
}

function resolve(schema: Schema, part: Schema | undefined): Schema | undefined {
  const name = part?.$ref?.replace("#/definitions/", "");
  return name === undefined ? part : schema.definitions?.[name];
}

function kindOf(options: readonly Schema[]): Kind {
  const types = new Set(options.flatMap((one) => one.type ?? []));
  types.delete("null");
  const hasChoices = options.some((one) => one.enum);
  if (hasChoices) return types.size === 0 ? "choice" : "mixed";
  if (types.has("array")) return "list";
  if (types.has("object")) return "pairs";
  if (types.has("boolean")) return "flag";
  if (types.has("string")) return types.size === 1 ? "text" : "mixed";
  return "number";
}

function asText(value: unknown): string {
  if (value === undefined || value === null) return "";
  if (Array.isArray(value)) return value.join(", ");
  return typeof value === "object" ? "" : String(value);
}
