// A job's metrics as points over its steps, kept few however long it runs. Pure.

const MOST_POINTS = 2000;

/** Return what one value stands for that is made of two. */
export function mergeValues(a, b) {
  if (a === undefined || b === undefined) {
    return a ?? b;
  }
  const count = a.num_values + b.num_values;
  const pick = (least, x, y) => (x === null ? y : y === null ? x : least(x, y));
  return {
    mean:
      count === 0
        ? null
        : ((a.mean ?? 0) * a.num_values + (b.mean ?? 0) * b.num_values) / count,
    minimum: pick(Math.min, a.minimum, b.minimum),
    maximum: pick(Math.max, a.maximum, b.maximum),
    num_values: count,
    num_non_finite: a.num_non_finite + b.num_non_finite,
  };
}

/** Return the point that stands for two neighbouring ones. */
export function mergePoints(a, b) {
  const names = new Set([...Object.keys(a.values), ...Object.keys(b.values)]);
  return {
    first_step: a.first_step,
    last_step: b.last_step,
    num_steps: a.num_steps + b.num_steps,
    committed_at_s: b.committed_at_s,
    values: Object.fromEntries(
      [...names].map((name) => [name, mergeValues(a.values[name], b.values[name])]),
    ),
  };
}

/** Return points of which each two neighbours have become one; the last one stays if it is odd. */
export function halve(points) {
  const found = [];
  for (let index = 0; index < points.length; index += 2) {
    const next = points[index + 1];
    found.push(next === undefined ? points[index] : mergePoints(points[index], next));
  }
  return found;
}

/** The points of one job. */
export class Series {
  /** By ascending steps. */
  points = [];

  /** Newest step known; what comes next is asked for since it. */
  get lastStep() {
    return this.points.at(-1)?.last_step ?? 0;
  }

  /** Take points that follow; the first may stand for known steps too, and then replaces them. */
  add(points) {
    if (points.length === 0) {
      return;
    }
    const first = points[0].first_step;
    this.points = [...this.points.filter((point) => point.first_step < first), ...points];
    while (this.points.length > MOST_POINTS) {
      const newest = this.points.splice(-MOST_POINTS / 4);
      this.points = [...halve(this.points), ...newest];
    }
  }

  /** Forget the steps after one; where a point is cut by that, all, so that they are asked anew. */
  goBack(step) {
    const isCut = this.points.some((point) => point.first_step <= step && point.last_step > step);
    this.points = isCut ? [] : this.points.filter((point) => point.last_step <= step);
  }
}

/** Return a metric over the steps: {x, y, low, high, odd}, `odd` of how many values were no numbers. */
export function pick(points, name, xOf = (point) => point.last_step) {
  return points
    .filter((point) => point.values[name] !== undefined)
    .map((point) => {
      const value = point.values[name];
      const { mean, minimum, maximum } = value;
      return { x: xOf(point), y: mean, low: minimum, high: maximum, odd: value.num_non_finite };
    });
}

/** Return where a step's time goes, over the steps: computing, communicating, waiting for others. */
export function splitStepTime(points) {
  const meanOf = (point, name) => point.values[name]?.mean ?? null;
  const over = (measure) =>
    points.map((point) => ({ x: point.last_step, y: measure(point), odd: 0 }));
  const communicate = (point) =>
    atMost(meanOf(point, "shortest_wait_s") ?? 0, meanOf(point, "wait_s"));
  return {
    compute: over((point) => meanOf(point, "compute_s")),
    communicate: over(communicate),
    wait: over((point) => {
      const waited = meanOf(point, "wait_s");
      return waited === null ? null : waited - communicate(point);
    }),
  };
}

function atMost(value, limit) {
  return limit === null ? null : Math.min(value, limit);
}

/** Return how many steps training was beyond its newest checkpoint, over the steps. */
export function lagBehind(points, checkpoints) {
  const made = checkpoints.toSorted((a, b) => a.made_at_s - b.made_at_s);
  let next = 0;
  let newest = 0;
  return points.map((point) => {
    while (next < made.length && made[next].made_at_s <= point.committed_at_s) {
      newest = made[next].step;
      next += 1;
    }
    return { x: point.last_step, y: Math.max(0, point.last_step - newest), odd: 0 };
  });
}
