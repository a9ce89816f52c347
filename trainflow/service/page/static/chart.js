// A chart: lines or stacked areas over steps or time, with its words and its numbers beside it.
// Arrow keys (with Shift ten points at once), Page Up and Down, Home and End, or a pointer, read single
// points. To screen readers it is a slider over its points: to an image they would pass no such keys.

import { bandPath, linePath, stack } from "./chart_marks.js";
import { chartTable, describeValue } from "./chart_table.js";
import { drawn, element, setText } from "./dom.js";
import { formatMoment, formatNumber, formatTime } from "./format.js";
import { extentOf, lastUntil, nearestTo, scaleLinear, ticksOf, timeTicksOf, withRoom } from "./scale.js";

const WIDTH = 640;
const HEIGHT = 240;
const PLOT = { left: 64, right: 606, top: 12, bottom: 204 };
const POINTS_AT_ONCE = 10;
const DAY_S = 86_400;
const NOTHING = "Nothing yet";

/**
 * Return a chart.
 *
 * It has `title`, `unit` of its values, `x` ("step" or "time"), `names` of its series, and may be
 * `stacked`, `stepped` (a value holds until the next), `fromZero`, and have a `note`.
 */
export class Chart {
  #options;
  #series = [];
  #newest = "";
  #at = null;
  #xScale = null;
  #yScale = null;
  #svg = drawn("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: "slider",
    tabindex: "0",
    "aria-label": "",
    "aria-roledescription": "chart slider",
  });
  #cursor = drawn("path", { class: "cursor" });
  #find;
  // What it says is the slider's value, too, which is read aloud already.
  #readout = element("output", { class: "readout", "aria-live": "off" });
  #table;

  constructor(options) {
    this.#options = options;
    this.#find = options.stepped ? lastUntil : nearestTo;
    this.#table = chartTable(options, { nameX: (x) => this.#nameX(x), find: this.#find });
    this.element = element(
      "figure",
      { class: "chart" },
      element("figcaption", {}, element("h3", {}, `${options.title}, ${options.unit}`)),
      legend(options.names),
      this.#svg,
      this.#readout,
      options.note ? element("p", { class: "note quiet" }, options.note) : "",
      this.#table.element,
    );
    this.#svg.addEventListener("keydown", (event) => this.#onKey(event));
    this.#svg.addEventListener("pointermove", (event) => this.#onPointer(event));
    this.#svg.addEventListener("pointerleave", () => this.#point(null));
    this.update(options.names.map(() => []));
  }

  /** Show other points: one list of {x, y, odd} for each name, by ascending x. */
  update(series) {
    const newest = JSON.stringify(series.map((points) => [points.length, points[0], points.at(-1)]));
    if (newest === this.#newest) {
      return;
    }
    this.#newest = newest;
    this.#series = this.#options.stacked ? stack(series) : series;
    this.#svg.setAttribute("aria-label", this.#summarise());
    this.#draw();
    this.#table.update(this.#series);
  }

  #draw() {
    const all = this.#series.flat();
    const xs = extentOf(all.map((point) => point.x));
    const ys = extentOf(all.flatMap((point) => [point.y, point.low, point.high]));
    if (xs === null || ys === null) {
      this.#xScale = null;
      const middle = { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" };
      this.#svg.replaceChildren(drawn("text", middle, NOTHING));
      this.#point(this.#at);
      return;
    }
    const { stacked, fromZero } = this.#options;
    const yRange = withRoom(ys, Boolean(stacked || fromZero));
    this.#xScale = scaleLinear(xs, [PLOT.left, PLOT.right]);
    this.#yScale = scaleLinear(yRange, [PLOT.bottom, PLOT.top]);
    this.#svg.replaceChildren(
      ...this.#axes(xs, yRange),
      ...this.#series.flatMap((points, index) => this.#marks(points, index + 1)),
      this.#cursor,
    );
    this.#point(this.#at);
  }

  #axes(xs, ys) {
    const isTime = this.#options.x === "time";
    const xTicks = isTime ? timeTicksOf(xs) : ticksOf(xs).filter(Number.isInteger);
    const across = ticksOf(ys, 4).flatMap((tick) => {
      const y = this.#yScale(tick);
      const text = { x: PLOT.left - 8, y: y + 4, "text-anchor": "end" };
      return [
        drawn("path", { class: "grid", d: `M${PLOT.left} ${y}H${PLOT.right}` }),
        drawn("text", text, formatNumber(tick)),
      ];
    });
    const below = xTicks.map((tick) => {
      const place = { x: this.#xScale(tick), y: PLOT.bottom + 18, "text-anchor": "middle" };
      return drawn("text", place, isTime ? nameTime(tick, xs) : formatNumber(tick));
    });
    const middle = { x: (PLOT.left + PLOT.right) / 2, y: HEIGHT - 2, "text-anchor": "middle" };
    return [...across, ...below, drawn("text", middle, isTime ? "time" : "step")];
  }

  #marks(points, number) {
    const { stacked, stepped } = this.#options;
    const band = bandPath(points, this.#xScale, this.#yScale);
    const line = linePath(points, this.#xScale, this.#yScale, stepped);
    const odd = points
      .filter((point) => point.odd > 0)
      .map((point) => `M${this.#xScale(point.x) - 4} ${PLOT.top - 4}l8 8m0 -8l-8 8`);
    return [
      drawn("path", { class: `${stacked ? "area" : "band"} fill-${number}`, d: band }),
      drawn("path", { class: `line series-${number}`, d: line }),
      drawn("path", { class: "odd", d: odd.join("") }),
    ];
  }

  /** Return the points that keys go through, and the place of the one that is told, or of the last. */
  #place() {
    const points = this.#series.find((each) => each.length > 0) ?? [];
    const last = points.length - 1;
    const now = this.#at === null ? last : points.indexOf(nearestTo(points, this.#at));
    return { points, last, now };
  }

  #onKey(event) {
    const { points, last, now } = this.#place();
    if (points.length === 0) {
      return;
    }
    const by = event.shiftKey ? POINTS_AT_ONCE : 1;
    const places = {
      ArrowLeft: now - by,
      ArrowDown: now - by,
      ArrowRight: now + by,
      ArrowUp: now + by,
      PageDown: now - POINTS_AT_ONCE,
      PageUp: now + POINTS_AT_ONCE,
      Home: 0,
      End: last,
    };
    if (Object.hasOwn(places, event.key)) {
      event.preventDefault();
      this.#point(points[Math.min(last, Math.max(0, places[event.key]))].x);
    } else if (event.key === "Escape") {
      this.#point(null);
    }
  }

  #onPointer(event) {
    const xs = extentOf(this.#series.flat().map((point) => point.x));
    if (xs === null) {
      return;
    }
    const box = this.#svg.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * WIDTH;
    this.#point(scaleLinear([PLOT.left, PLOT.right], xs)(place));
  }

  /** Tell of the points nearest to a place on the x axis; null: of none. */
  #point(x) {
    this.#at = x;
    const near = this.#series.map((points) => (x === null ? null : this.#find(points, x)));
    const first = near.find((point) => point !== null);
    if (first === undefined || this.#xScale === null) {
      this.#cursor.setAttribute("d", "");
      this.#tell("");
      return;
    }
    const place = this.#xScale(first.x);
    this.#cursor.setAttribute("d", `M${place} ${PLOT.top}V${PLOT.bottom}`);
    const told = near.flatMap((point, index) =>
      point === null ? [] : [`${this.#options.names[index]} ${describeValue(point)}`],
    );
    this.#tell(`${this.#nameX(first.x)}: ${told.join(", ")}`);
  }

  #tell(text) {
    setText(this.#readout, text);
    const { points, now } = this.#place();
    const value = {
      "aria-valuemin": Math.min(1, points.length),
      "aria-valuemax": points.length,
      "aria-valuenow": now + 1,
      "aria-valuetext": text || (points.length === 0 ? NOTHING : "no point chosen"),
      "aria-disabled": points.length === 0,
    };
    for (const [name, each] of Object.entries(value)) {
      this.#svg.setAttribute(name, each);
    }
  }

  #nameX(x) {
    return this.#options.x === "time" ? formatMoment(x) : `step ${formatNumber(x)}`;
  }

  #summarise() {
    const { title, unit, names } = this.#options;
    const told = this.#series.map((points, index) => {
      const values = points.map((point) => point.own ?? point.y);
      const extent = extentOf(values);
      if (extent === null) {
        return `${names[index]}: nothing yet`;
      }
      const [low, high] = extent.map(formatNumber);
      const from = this.#nameX(points[0].x);
      const to = this.#nameX(points.at(-1).x);
      const last = formatNumber(values.at(-1));
      return `${names[index]} from ${from} to ${to}: lowest ${low}, highest ${high}, now ${last}`;
    });
    return `${title}, ${unit}. ${told.join("; ")}.`;
  }
}

/** Return a time on the axis: of a run of days, the day too. */
function nameTime(atS, [first, last]) {
  return last - first > DAY_S ? formatMoment(atS).slice(5, 16) : formatTime(atS);
}

function legend(names) {
  const entries = names.map((name, index) => {
    const line = { class: `line series-${index + 1}`, d: "M0 5H24" };
    const sample = drawn("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, drawn("path", line));
    return element("li", {}, sample, name);
  });
  return element("ul", { class: "legend" }, ...entries);
}
