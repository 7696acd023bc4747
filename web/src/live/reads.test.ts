import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { ApiError } from "./api";
import { Reads } from "./reads";

/** Answers each read after `takesMs` with its number; gives up where it is told to, as fetch does. */
class FakeResource {
  takesMs = 100;
  failure: ApiError | null = null;
  begun = 0;
  underWay = 0;
  most = 0;

  readonly read = (signal: AbortSignal): Promise<number> => {
    this.begun += 1;
    const [number, failure] = [this.begun, this.failure];
    this.underWay += 1;
    this.most = Math.max(this.most, this.underWay);
    return new Promise<number>((resolve, reject) => {
      setTimeout(() => (failure ? reject(failure) : resolve(number)), this.takesMs);
      signal.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError")));
    }).finally(() => {
      this.underWay -= 1;
    });
  };
}

describe("Reads", () => {
  let resource: FakeResource;
  let reads: Reads<number>;
  let values: number[];
  let errors: string[];

  beforeEach(() => {
    vi.useFakeTimers();
    resource = new FakeResource();
    values = [];
    errors = [];
    reads = new Reads({
      read: resource.read,
      onValue: (value) => values.push(value),
      onError: (error) => errors.push(error.code),
    });
  });
  afterEach(() => {
    reads.close();
    vi.useRealTimers();
  });

  const wait = (ms: number) => vi.advanceTimersByTimeAsync(ms);

  it("takes a reply that is slower than the page asks", async () => {
    resource.takesMs = 5000;
    for (let asked = 0; asked < 20; asked += 1) {
      reads.ask();
      await wait(2000);
    }
    expect(values.slice(0, 3)).toEqual([1, 2, 3]);
    expect(resource.most).toBe(1);
    expect(errors).toEqual([]);
  });

  it("reads once more behind a read under way, however often it was asked", async () => {
    for (let asked = 0; asked < 5; asked += 1) reads.ask();
    await wait(1000);
    expect(values).toEqual([1, 2]);
    await wait(10_000);
    expect(resource.begun).toBe(2);
  });

  it("asks a service that is away again, with rests, until it answers", async () => {
    resource.failure = new ApiError(503, "unavailable", "Not now.");
    reads.ask();
    reads.ask();
    await wait(150);
    expect([errors, resource.begun]).toEqual([["unavailable"], 1]);
    resource.failure = null;
    await wait(3100);
    expect(values).toEqual([2]);
  });

  it("does not repeat what was refused", async () => {
    resource.failure = new ApiError(404, "not_found", "There is no job x.");
    reads.ask();
    await wait(60_000);
    expect([errors, resource.begun]).toEqual([["not_found"], 1]);
  });

  it("gives up on a reply that never comes, says so, and asks again", async () => {
    resource.takesMs = 1e9;
    reads.ask();
    await wait(29_000);
    expect(errors).toEqual([]);
    await wait(2000);
    expect(errors).toEqual(["no_reply"]);
    resource.takesMs = 100;
    await wait(4000);
    expect(values).toEqual([2]);
  });

  it("says nothing more once closed", async () => {
    reads.ask();
    reads.close();
    reads.ask();
    await wait(60_000);
    expect([values, errors, resource.begun]).toEqual([[], [], 1]);
  });
});
