import { expect, it, vi } from "vitest";
import { pressedUnless } from "./pressedUnless";

it("ignores a press while held, and says so", () => {
  const press = vi.fn();
  const held = pressedUnless(true, press);
  const event = new Event("click", { cancelable: true });
  held.onClick(event);
  expect(held["aria-disabled"]).toBe(true);
  expect(press).not.toHaveBeenCalled();
  expect(event.defaultPrevented).toBe(true);
});

it("is pressed otherwise, and lets a form be sent", () => {
  const press = vi.fn();
  const free = pressedUnless(false, press);
  const event = new Event("click", { cancelable: true });
  free.onClick(event);
  expect(free["aria-disabled"]).toBe(false);
  expect(press).toHaveBeenCalledOnce();
  expect(event.defaultPrevented).toBe(false);
});
