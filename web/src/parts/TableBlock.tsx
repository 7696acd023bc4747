import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** How far from the picture rows are drawn, so that a quick scroll shows no hole. */
const MARGIN_PX = 1000;

export interface RowHeight {
  /** The mean of some rows. */
  px: number;
  /** The width at which that was measured. */
  tableWidth: number;
}

/** Before any row was drawn. */
export const UNKNOWN_HEIGHT: RowHeight = { px: 60, tableWidth: 0 };

interface TableBlockProps {
  /** How many rows it has. */
  rows: number;
  /** How many columns the table has. */
  columns: number;
  /** What a row of the table is high, for a block that was not drawn yet at this width. */
  usual: RowHeight;
  /** What a row of a block was high when it was drawn or left; one measure of each width is enough. */
  onMeasure: (height: RowHeight) => void;
  /** Its rows; called only while they are near the picture. */
  draw: () => ComponentChildren;
}

/**
 * Some rows of a long table. Away from the picture they are left out and their room is kept, so that a thousand rows
 * are as cheap as fifty, and rows may be of any height.
 */
export function TableBlock({ rows, columns, usual, onMeasure, draw }: TableBlockProps) {
  const body = useRef<HTMLTableSectionElement>(null);
  const own = useRef<RowHeight | null>(null);
  const [isNear, setNear] = useState(false);
  const shown = useRef({ isNear, rows });
  shown.current = { isNear, rows };
  const known = own.current?.tableWidth === usual.tableWidth ? own.current : usual;

  const measure = (element: HTMLElement) => {
    own.current = { px: element.offsetHeight / shown.current.rows, tableWidth: element.offsetWidth };
    onMeasure(own.current);
  };

  useLayoutEffect(() => {
    if (body.current && isNear) measure(body.current);
  }, [isNear]);

  useLayoutEffect(() => {
    const element = body.current;
    if (!element) return;
    const { top, bottom } = element.getBoundingClientRect();
    setNear(bottom > -MARGIN_PX && top < window.innerHeight + MARGIN_PX); // before anything is painted
    const observer = new IntersectionObserver(
      (entries) => {
        const near = entries.at(-1)?.isIntersecting ?? false;
        if (near === shown.current.isNear) return;
        // Whoever works in it by keyboard keeps his place, wherever the picture is.
        if (!near && element.contains(document.activeElement)) return;
        if (!near) measure(element);
        setNear(near);
      },
      { rootMargin: `${MARGIN_PX}px 0px` },
    );
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  return (
    <tbody ref={body}>
      {isNear ? (
        draw()
      ) : (
        // biome-ignore lint/a11y/noAriaHiddenOnFocusable: it takes no focus, and is nothing but room
        <tr class="left-out" aria-hidden="true">
          <td colSpan={columns} style={{ height: `${Math.round(rows * known.px)}px` }} />
        </tr>
      )}
    </tbody>
  );
}
