// The lines, bands and areas of a chart, as path data. Pure.

const round = (value) => Math.round(value * 10) / 10;

/** Return runs of neighbouring points that have a value: where one has none, a line is broken. */
function runsOf(points, hasValue) {
  const runs = [[]];
  for (const point of points) {
    if (hasValue(point)) {
      runs.at(-1).push(point);
    } else if (runs.at(-1).length > 0) {
      runs.push([]);
    }
  }
  return runs.filter((run) => run.length > 0);
}

/** Return the path of a line; `stepped` if a value holds until the next one. */
export function linePath(points, xScale, yScale, stepped = false) {
  return runsOf(points, (point) => point.y !== null)
    .map((run) => {
      const parts = run.map((point, index) => {
        const [x, y] = [round(xScale(point.x)), round(yScale(point.y))];
        if (index === 0) {
          return `M${x} ${y}`;
        }
        return stepped ? `H${x}V${y}` : `L${x} ${y}`;
      });
      return run.length === 1 ? `${parts[0]}h0.1` : parts.join("");
    })
    .join("");
}

/** Return the path of the surface between each point's `low` and `high`. */
export function bandPath(points, xScale, yScale) {
  const hasBand = (point) =>
    point.low !== null && point.low !== undefined && point.high !== null;
  return runsOf(points, hasBand)
    .filter((run) => run.length > 1)
    .map((run) => {
      const place = (value, point) => `${round(xScale(point.x))} ${round(yScale(value))}`;
      const upper = run.map((point) => place(point.high, point));
      const lower = run.map((point) => place(point.low, point)).reverse();
      return `M${[...upper, ...lower].join("L")}Z`;
    })
    .join("");
}

/** Return series of points each laid on the ones before it: `low` and `high` are its surface. */
export function stack(series) {
  let floor = [];
  return series.map((points) => {
    const laid = points.map((point, index) => {
      const low = index < floor.length ? floor[index] : 0;
      const high = point.y === null || low === null ? null : low + point.y;
      return { ...point, own: point.y, low: high === null ? null : low, high, y: high };
    });
    floor = laid.map((point) => point.high);
    return laid;
  });
}
