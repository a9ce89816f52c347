// Map values to places in a drawing, and find round numbers for its axes. Pure.

const TIME_STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200];
const DAY_S = 86400;

/** Return the function that maps `from` to `to`, each a pair; a single value to the middle. */
export function scaleLinear([low, high], [start, end]) {
  const span = high - low;
  return span > 0
    ? (value) => start + ((value - low) / span) * (end - start)
    : () => (start + end) / 2;
}

/** Return the least and the greatest of values, null left out; null if there are none. */
export function extentOf(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value !== null && value !== undefined && Number.isFinite(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low <= high ? [low, high] : null;
}

/** Return an extent with a little room, so that a level line isn't an edge. */
export function withRoom([low, high], fromZero) {
  const least = fromZero ? Math.min(0, low) : low;
  const room = (high - least) * 0.05 || Math.abs(high) * 0.1 || 1;
  return [fromZero || least === 0 ? least : least - room, high + room];
}

/** Return about `count` round numbers within an extent. */
export function ticksOf([low, high], count = 5) {
  const span = high - low;
  if (!(span > 0)) {
    return [low];
  }
  const rough = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map((factor) => factor * rough).find((each) => span / each <= count);
  return multiplesOf(step, low, high);
}

/** Return round times of day within an extent of seconds since 1970. */
export function timeTicksOf([low, high], count = 4) {
  const span = high - low;
  if (!(span > 0)) {
    return [low];
  }
  const days = DAY_S * Math.ceil(span / count / DAY_S);
  const step = TIME_STEPS_S.find((each) => span / each <= count) ?? days;
  return multiplesOf(step, low, high);
}

function multiplesOf(step, low, high) {
  // Rounded, since 3 * 0.1 is a little more than 0.3.
  const multiple = (number) => Number((number * step).toPrecision(12));
  const ticks = [];
  for (let number = Math.ceil(low / step); multiple(number) <= high; number += 1) {
    ticks.push(multiple(number));
  }
  return ticks;
}

/** Return the point nearest to a place on the x axis; points ascend. Null if there is none. */
export function nearestTo(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].x < x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const [before, after] = [points[low - 1], points[low]];
  if (before === undefined || after === undefined) {
    return after ?? before ?? null;
  }
  return x - before.x < after.x - x ? before : after;
}

/** Return the last point at a place on the x axis, or before it; null if there is none. */
export function lastUntil(points, x) {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].x <= x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return points[low - 1] ?? null;
}

/** Return every n-th point and the last one, so that there are at most `count`. */
export function thin(points, count) {
  const every = Math.ceil(points.length / count);
  return points.filter((_, index) => index % every === 0 || index === points.length - 1);
}
