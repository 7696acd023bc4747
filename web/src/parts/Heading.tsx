import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { takeArrival } from "../router";

/** What a page is called. Who comes from another page of these begins to read and to tab here, as after a load. */
export function Heading({ children }: { children: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    if (takeArrival()) heading.current?.focus({ preventScroll: true });
  }, []);
  return (
    <h1 ref={heading} tabIndex={-1}>
      {children}
    </h1>
  );
}
