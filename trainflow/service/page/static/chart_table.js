// The numbers of a chart as a table, made only while somebody reads it.

import { element, row, table } from "./dom.js";
import { formatNumber } from "./format.js";
import { thin } from "./scale.js";

const MOST_ROWS = 50;

/** Return a point's value in words. */
export function describeValue(point) {
  const value = formatNumber(point.own ?? point.y);
  return point.odd > 0 ? `${value} (${point.odd} not finite)` : value;
}

/** Return the table that belongs to a chart, closed at first, and how to give it the points. */
export function chartTable(options, { nameX, find }) {
  const columns = options.names.map((_, index) => index + 1);
  const headings = [options.x === "time" ? "Time" : "Step", ...options.names];
  const { frame, body } = table(`${options.title}, ${options.unit}`, headings, columns);
  const details = element("details", {}, element("summary", {}, "As a table"), frame);
  let series = [];

  const show = () => {
    if (!details.open) {
      body.replaceChildren();
      return;
    }
    const longest = series.reduce((a, b) => (b.length > a.length ? b : a), []);
    const rows = thin(longest, MOST_ROWS).toReversed();
    body.replaceChildren(
      ...rows.map(({ x }) => {
        const near = series.map((points) => find(points, x));
        const values = near.map((point) => (point === null ? "–" : describeValue(point)));
        return row([nameX(x), ...values], columns);
      }),
    );
  };
  details.addEventListener("toggle", show);
  return {
    element: details,
    update: (points) => {
      series = points;
      show();
    },
  };
}
