/** A course in the size of a word. Pure: points in, a path out. */

export type Point = readonly [step: number, value: number];

/** More points than this are thinned out. */
const MOST_POINTS = 64;
/** The newest point moves on with the job until it is so large a part of the way from the one before. */
const SHARE = 1 / 32;

/** The course with one more point. A step that was reached before is trained again: what lay behind it is forgotten. */
export function withPoint(course: readonly Point[], step: number, value: number): readonly Point[] {
  const kept = course.filter((point) => point[0] < step);
  const [before, last] = kept.slice(-2);
  if (before && last && last[0] - before[0] < step * SHARE) kept.pop();
  kept.push([step, value]);
  if (kept.length <= MOST_POINTS) return kept;
  return kept.filter((_, index) => index % 2 === 0 || index === kept.length - 1);
}

/** The line in a box of `width` by `height`, the greatest value at the top; nothing where there is no line yet. */
export function pathOf(course: readonly Point[], width: number, height: number): string {
  const [first, last] = [course[0], course.at(-1)];
  if (!first || !last || last[0] === first[0]) return "";
  const values = course.map((point) => point[1]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const places = course.map(([step, value]) => {
    const x = ((step - first[0]) / (last[0] - first[0])) * width;
    const y = high > low ? ((high - value) / (high - low)) * height : height / 2;
    return `${round(x)} ${round(y)}`;
  });
  return `M${places.join("L")}`;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
