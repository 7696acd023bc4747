import { describe, expect, it } from "vitest";
import { type Schema, shapeOf } from "./schema";

const schema: Schema = {
  properties: {
    name: { type: "string", description: "Unique." },
    seed: { type: "integer", default: 0 },
    reproducible: { type: "boolean", default: true },
    secrets: { type: "array", items: { type: "string" }, default: [] },
    env: { type: "object", additionalProperties: { type: "string" }, default: {} },
    workers: { $ref: "#/definitions/WorkersSpec" },
    checkpoint: { $ref: "#/definitions/CheckpointSpec" },
  },
  definitions: {
    WorkersSpec: {
      properties: {
        max: { anyOf: [{ type: "integer" }, { type: "null" }], default: null },
        autoscale: { enum: ["off", "capacity"], default: "off" },
      },
    },
    CheckpointSpec: {
      properties: { every: { anyOf: [{ type: ["number", "string"] }, { enum: ["auto"] }], default: 30 } },
    },
  },
};

describe("shapeOf", () => {
  it.each([
    ["name", "text"],
    ["seed", "number"],
    ["reproducible", "flag"],
    ["secrets", "list"],
    ["env", "pairs"],
    ["workers.max", "number"],
    ["workers.autoscale", "choice"],
    ["checkpoint.every", "mixed"],
  ])("%s is a %s", (path, kind) => {
    expect(shapeOf(schema, path)?.kind).toBe(kind);
  });

  it("tells defaults, choices and meanings as people read them", () => {
    expect(shapeOf(schema, "seed")?.standard).toBe("0");
    expect(shapeOf(schema, "workers.max")?.standard).toBe("");
    expect(shapeOf(schema, "env")?.standard).toBe("");
    expect(shapeOf(schema, "workers.autoscale")?.choices).toEqual(["off", "capacity"]);
    expect(shapeOf(schema, "name")?.about).toBe("Unique.");
  });

  it("knows no field that the schema does not", () => {
    expect(shapeOf(schema, "workers.colour")).toBeNull();
    expect(shapeOf(schema, "nothing.at.all")).toBeNull();
  });
});
