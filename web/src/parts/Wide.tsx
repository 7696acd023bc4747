import type { ComponentChildren } from "preact";

interface WideProps {
  label: string;
  isCard?: boolean;
  children: ComponentChildren;
}

/** What scrolls by itself where it is wider than the window. */
export function Wide({ label, isCard = false, children }: WideProps) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard, also without a link in it
    <section class={isCard ? "card scroll-x" : "scroll-x"} tabIndex={0} aria-label={label}>
      {children}
    </section>
  );
}
