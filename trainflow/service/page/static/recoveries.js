// How long each recovery of a job took, and where its time went.

import { element, row, setText, table } from "./dom.js";
import { formatDuration, formatMoment, formatNumber } from "./format.js";
import { measureRecovery, medianOf } from "./job_state.js";

const MOST_SHOWN = 50;
const NUMBERS = [1, 2, 3, 4, 5];
const HEADINGS = [
  "Recovered at",
  "Took",
  "Steps lost",
  "New epoch begun after",
  "State held after that",
  "Step committed after that",
  "Causes",
];

/** The table of recoveries, newest first. */
export class Recoveries {
  #known = [];
  #rows = table("Recoveries", HEADINGS, NUMBERS);
  #note = element("p", { class: "quiet" }, "Nothing had to be recovered.");
  element = element("div", {}, this.#note, this.#rows.frame);

  /** Take those among events that tell of a recovery. */
  add(events) {
    const found = events.filter((event) => event.kind === "recovered").map(measureRecovery);
    if (found.length === 0) {
      return;
    }
    this.#known.push(...found);
    this.#rows.body.prepend(...found.slice(-MOST_SHOWN).toReversed().map(describe));
    while (this.#rows.body.childElementCount > MOST_SHOWN) {
      this.#rows.body.lastElementChild.remove();
    }
    setText(this.#note, `${formatNumber(this.count)} in all; ${this.summary}.`);
  }

  /** How many there were. */
  get count() {
    return this.#known.length;
  }

  /** How long they took, in words. */
  get summary() {
    const took = this.#known.map((each) => each.tookS).filter((each) => each !== null);
    if (took.length === 0) {
      return "";
    }
    const worst = took.reduce((a, b) => Math.max(a, b), 0);
    return `median ${formatDuration(medianOf(took))}, longest ${formatDuration(worst)}`;
  }
}

function describe(recovery) {
  return row(
    [
      formatMoment(recovery.atS),
      formatDuration(recovery.tookS),
      formatNumber(recovery.stepsLost),
      formatDuration(recovery.regroupS),
      formatDuration(recovery.healS),
      formatDuration(recovery.stepS),
      recovery.causes,
    ],
    NUMBERS,
  );
}
