import { type Point, pathOf } from "../charts/spark";
import { formatValue } from "../text/format";

const WIDTH_PX = 64;
const HEIGHT_PX = 18;

/** How a metric came to where it is; nothing before there is a line. */
export function Sparkline({ course, name }: { course: readonly Point[]; name: string }) {
  const path = pathOf(course, WIDTH_PX - 2, HEIGHT_PX - 2);
  if (path === "") return null;
  const label = `${name} from ${formatValue(course[0]?.[1])} to ${formatValue(course.at(-1)?.[1])}`;
  return (
    <svg
      class="spark"
      viewBox={`-1 -1 ${WIDTH_PX} ${HEIGHT_PX}`}
      width={WIDTH_PX}
      height={HEIGHT_PX}
      role="img"
      aria-label={label}
    >
      <path d={path} />
    </svg>
  );
}
