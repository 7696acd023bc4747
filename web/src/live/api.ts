/** Calls of /api/v1. Every failure is an `ApiError` whose message can be shown as it is. */

import type { Problem } from "../wire";

export const API = "/api/v1";

export interface Finding {
  path: string;
  message: string;
}

export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  /** What is wrong with the input, each with its place. */
  readonly findings: Finding[];

  constructor(status: number, code: string, message: string, findings: Finding[] = []) {
    super(message);
    this.status = status;
    this.code = code;
    this.findings = findings;
  }

  get isUnauthenticated(): boolean {
    return this.status === 401;
  }

  /** The service was away, or could not: the same question may well be answered later. */
  get isTransient(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

let unauthenticated: () => void = () => {};

/** Be told when the service no longer knows who this is, wherever that is noticed. */
export function onUnauthenticated(listener: () => void): void {
  unauthenticated = listener;
}

/** Turn a problem+json body (or whatever a proxy put in its place) into an error with one readable sentence. */
export function describeProblem(status: number, body: unknown): ApiError {
  const problem = (typeof body === "object" && body !== null ? body : {}) as Partial<Problem>;
  const findings = problem.errors ?? [];
  const details = findings.map((one) => (one.path ? `${one.path}: ${one.message}` : one.message));
  const sentence = problem.detail || problem.title || `The service answered with status ${status}.`;
  const extra = details.filter((detail) => !sentence.includes(detail));
  return new ApiError(status, problem.code ?? "unknown", [sentence, ...extra].join(" "), findings);
}

/** The error of an answer that is not ok. */
export async function errorOf(response: Response): Promise<ApiError> {
  const body: unknown = await response.json().catch(() => null);
  if (response.status === 401) unauthenticated();
  return describeProblem(response.status, body);
}

async function request<T>(path: string, init: RequestInit): Promise<T> {
  const response = await fetchOk(path, init);
  if (response.status === 204) return null as T;
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreadable", "The reply of the service was cut off, or is none of Rubato's.");
  }
}

async function fetchOk(path: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(API + path, { credentials: "same-origin", ...init });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The service cannot be reached. Is it running? Try: rubato doctor");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** Read one resource. */
export function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return request<T>(path, { headers: { Accept: "application/json" }, ...(signal ? { signal } : {}) });
}

/** Read all pages of a list; `path` has a query already. */
export async function getAll<T>(path: string, signal?: AbortSignal): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | null = null;
  do {
    const more: string = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
    const page: { items: T[]; next_cursor: string | null } = await get(path + more, signal);
    found.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null);
  return found;
}

/** Read a text that may take a while to be there; null: not yet, ask again. */
export async function getText(path: string, signal: AbortSignal): Promise<string | null> {
  const response = await fetchOk(path, { headers: { Accept: "text/plain" }, signal });
  return response.status === 202 ? null : await response.text();
}

/** Send a wish. The key makes a repeat by the browser or a proxy harmless. */
export function post<T>(path: string, body: unknown = {}): Promise<T> {
  return send<T>(path, JSON.stringify(body), "application/json");
}

/** The key of the last wish that was not answered. */
export interface Unanswered {
  key?: string;
  path?: string;
  body?: string;
}

/** Send a wish that makes something: the same one again, after a lost reply, makes no second. */
export function postOnce<T>(unanswered: Unanswered, path: string, body: unknown): Promise<T> {
  return sendOnce(unanswered, path, JSON.stringify(body), "application/json");
}

/** The same with a job spec as people write it. */
export function postYaml<T>(unanswered: Unanswered, path: string, yaml: string): Promise<T> {
  return sendOnce(unanswered, path, yaml, "application/yaml");
}

/** What the service says of a job spec; nothing is stored. */
export function dryRun(yaml: string): Promise<{ spec: Record<string, unknown>; remarks: string[] }> {
  return send("/jobs?dry_run=true", yaml, "application/yaml");
}

/** Store the zip of a working folder under its hash, where the service has none of that hash. */
export async function putPackage(sha256: string, zip: Blob, signal: AbortSignal): Promise<void> {
  const path = `/packages/${sha256}`;
  try {
    await fetchOk(path, { method: "HEAD", signal });
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) throw error;
    await fetchOk(path, { method: "PUT", body: zip, signal });
  }
}

async function sendOnce<T>(unanswered: Unanswered, path: string, body: string, type: string): Promise<T> {
  const isAgain = unanswered.path === path && unanswered.body === body;
  const key = (isAgain && unanswered.key) || randomKey();
  Object.assign(unanswered, { key, path, body });
  const made = await send<T>(path, body, type, key);
  unanswered.key = "";
  return made;
}

function send<T>(path: string, body: string, type: string, key = randomKey()): Promise<T> {
  const headers = { "Content-Type": type, Accept: "application/json", "Idempotency-Key": key };
  return request<T>(path, { method: "POST", headers, body });
}

/** Change some fields of one resource; with an etag only as it was read. */
export function patch<T>(path: string, body: unknown, etag?: string): Promise<T> {
  const headers = {
    "Content-Type": "application/json",
    Accept: "application/json",
    ...(etag ? { "If-Match": etag } : {}),
  };
  return request<T>(path, { method: "PATCH", headers, body: JSON.stringify(body) });
}

/** Set one resource. */
export function put<T>(path: string, body: unknown): Promise<T> {
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  return request<T>(path, { method: "PUT", headers, body: JSON.stringify(body) });
}

/** Remove one resource. */
export function remove(path: string): Promise<null> {
  return request<null>(path, { method: "DELETE" });
}

// crypto.randomUUID exists only on https and localhost; the page must also work behind a plain-http tunnel.
function randomKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}
