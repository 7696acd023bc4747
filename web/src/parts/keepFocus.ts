const FOCUSABLE = ":is(a[href], button, input, select, textarea, summary, [tabindex]):not(:disabled)";

/**
 * Where what has the focus is taken away (a row that is deleted, a tab that is left), what is nearest to it takes it:
 * what came in its place, else its neighbour in the list, else what is around both. The document's body never does.
 */
export function keepFocus(root: Node): void {
  let last: Element | null = null;
  root.addEventListener("focusin", (event) => {
    last = event.target as Element;
  });
  root.addEventListener("focusout", () => {
    // Who leaves what is still there, by a click beside it, wants the focus nowhere.
    setTimeout(() => {
      if (last?.isConnected && document.activeElement === document.body) last = null;
    });
  });
  new MutationObserver((records) => {
    if (!last || last.isConnected || document.activeElement !== document.body) return;
    const lost = records.findLast((record) => [...record.removedNodes].some((node) => node.contains(last)));
    if (lost) heirOf(lost, records)?.focus({ preventScroll: true });
  }).observe(root, { childList: true, subtree: true });
}

function heirOf(lost: MutationRecord, records: readonly MutationRecord[]): HTMLElement | null {
  const around = lost.target as Element;
  if (around.matches("[tabindex]")) return around as HTMLElement;
  const added = records
    .filter((record) => record.target === around)
    .flatMap((record) => [...record.addedNodes]);
  const kind = lost.removedNodes[0]?.nodeName;
  const beside = [lost.nextSibling, lost.previousSibling].filter((node) => node?.nodeName === kind);
  for (const node of [...added, ...beside]) {
    const found = node instanceof Element && node.isConnected ? firstIn(node) : null;
    if (found) return found;
  }
  return nearestTo(around);
}

/** Of those around, from the inside out, the first that takes the focus or holds what does; at last the content. */
function nearestTo(place: Element | null): HTMLElement | null {
  for (let around = place; around; around = around.parentElement) {
    if (!around.isConnected) continue;
    const found = around.querySelector<HTMLElement>("#main") ?? firstIn(around);
    if (found) return found;
  }
  return null;
}

function firstIn(place: Element): HTMLElement | null {
  if (place.matches(FOCUSABLE)) return place as HTMLElement;
  return [...place.querySelectorAll<HTMLElement>(FOCUSABLE)].find((one) => one.checkVisibility()) ?? null;
}
