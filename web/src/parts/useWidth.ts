import { useEffect, useLayoutEffect, useState } from "preact/hooks";

/** The width of an element in whole pixels, whatever changes it; 0 before it is drawn. */
export function useWidth(element: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    if (element.current) setWidth(Math.floor(element.current.clientWidth));
  }, [element]);
  useEffect(() => {
    if (!element.current) return;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [element]);
  return width;
}
