// A job's newest events. However many come, few are drawn, and not more than some times a second.

import { element, setText } from "./dom.js";
import { formatIso, formatMoment, formatNumber, formatTime } from "./format.js";

const MOST_SHOWN = 200;
const DRAW_AFTER_MS = 100;
const BAD = new Set([
  "failure",
  "failed",
  "hang",
  "deadlock",
  "data_stall",
  "data_stall_last",
  "waited_for",
  "straggler",
  "isolate",
  "waiting",
  "checkpoint_failed",
  "checkpoint_unusable",
  "drill_failed",
  "record_unwritable",
]);
const GOOD = new Set([
  "recovered",
  "succeeded",
  "checkpoint",
  "straggler_over",
  "data_stall_over",
  "drill",
]);
const TOLD_ALOUD = new Set(["failure", "recovered", "succeeded", "failed", "stopped", "waiting"]);

/** The list, newest first. */
export class EventList {
  #waiting = [];
  #timer = null;
  #count = 0;
  #first = null;
  #spoken;
  #list = element("ol", { class: "events" });
  #note = element("p", { class: "quiet" }, "No event has come yet.");

  /** Number of the last event that is no news: there when the page was opened. */
  known = 0;

  constructor(spoken) {
    this.#spoken = spoken;
    const frame = { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Events" };
    this.element = element("div", {}, this.#note, element("div", frame, this.#list));
  }

  /** Take events, by ascending numbers. */
  add(events) {
    this.#count += events.length;
    this.#first ??= events[0].number;
    this.#waiting = [...this.#waiting, ...events].slice(-MOST_SHOWN);
    this.#timer ??= setTimeout(() => this.#draw(), DRAW_AFTER_MS);
  }

  #draw() {
    this.#timer = null;
    const fresh = this.#waiting;
    this.#waiting = [];
    const isNew = (event) => event.number > this.known;
    this.#list.prepend(...fresh.map((event) => describeEvent(event, isNew(event))).toReversed());
    while (this.#list.childElementCount > MOST_SHOWN) {
      this.#list.lastElementChild.remove();
    }
    this.#tell();
    const told = fresh.findLast((event) => isNew(event) && TOLD_ALOUD.has(event.kind));
    if (told !== undefined) {
      setText(this.#spoken, `${told.kind}: ${told.text}`);
    }
  }

  #tell() {
    const shown = this.#list.childElementCount;
    const all = `${formatNumber(this.#count)} events, the newest first`;
    const some = `The newest ${formatNumber(shown)} of ${formatNumber(this.#count)} events`;
    const since = this.#first > 1 ? `, counted from number ${formatNumber(this.#first)} on` : "";
    setText(this.#note, `${shown < this.#count ? some : all}${since}.`);
  }
}

function describeEvent(event, isNew) {
  const kinds = BAD.has(event.kind) ? "is-bad" : GOOD.has(event.kind) ? "is-good" : "";
  const at = {
    datetime: formatIso(event.at_s),
    title: formatMoment(event.at_s),
  };
  return element(
    "li",
    { class: `${kinds} ${isNew ? "is-new" : ""}`, "data-number": event.number },
    element("time", at, formatTime(event.at_s)),
    element("span", { class: "kind" }, event.kind),
    element("span", { class: "text" }, event.text),
  );
}
