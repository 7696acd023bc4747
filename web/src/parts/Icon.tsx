/** The page's few icons, drawn on a 20 by 20 grid with the text's colour. */

const PATHS = {
  back: "M12.5 4.5 7 10l5.5 5.5",
  check: "m4.5 10.5 4 4 7-9",
  cross: "m5.5 5.5 9 9m0-9-9 9",
  compare: "M3.5 14.5c4 0 4-9 7-9s2 5 6 5M3.5 6c5 0 5 8.5 13 8.5",
  copy: "M7.5 7.5h8v8h-8zM12.5 7V4.5h-8v8H7",
  download: "M10 3.5v9m-3.8-3.6L10 12.7l3.8-3.8M4 16.5h12",
  leave: "M8 4H4.5v12H8m4-9.5 3.5 3.5-3.5 3.5M15 10H8.5",
  minus: "M5 10h10",
  moon: "M15.8 12A6.5 6.5 0 0 1 8 4.2 6.5 6.5 0 1 0 15.8 12Z",
  pause: "M7 5v10m6-10v10",
  play: "m7 4.8 8 5.2-8 5.2z",
  plus: "M5 10h10M10 5v10",
  save: "M4.5 4.5h9l2 2v9h-11zM7 4.5v4h5v-4M7 15.5v-4h6v4",
  search: "M9 4.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9Zm3.3 7.8 3.7 3.7",
  sliders: "M4 6.5h7m3 0h2M4 13.5h2m3 0h7M11 4.5v4M9 11.5v4",
  stop: "M5.5 5.5h9v9h-9z",
  sun: "M10 6.8a3.2 3.2 0 1 1 0 6.4 3.2 3.2 0 0 1 0-6.4ZM10 2v1.8m0 12.4V18M2 10h1.8m12.4 0H18M4.3 4.3l1.3 1.3m8.8 8.8 1.3 1.3m0-11.4-1.3 1.3m-8.8 8.8-1.3 1.3",
  system: "M3.5 4.5h13v9h-13zM8 16.5h4",
  down: "M10 4.5v10m-4-4 4 4 4-4",
} as const;

export type IconName = keyof typeof PATHS | "mark";

export function Icon({ name }: { name: IconName }) {
  if (name === "mark") return <Mark />;
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The sign of the house: a beat that stretches and gives back. */
function Mark() {
  const bars = [
    [2, 8, 4],
    [6, 5, 10],
    [10, 2, 16],
    [14, 6, 8],
  ] as const;
  return (
    <svg class="mark" viewBox="0 0 18 20" aria-hidden="true" focusable="false">
      {bars.map(([x, y, height]) => (
        <rect key={x} x={x} y={y} width="2.4" height={height} rx="1.2" />
      ))}
    </svg>
  );
}
