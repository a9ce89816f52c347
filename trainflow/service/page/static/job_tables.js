// A job's workers and checkpoints.

import { element, row, setText, table } from "./dom.js";
import { formatBytes, formatDuration, formatMoment, formatNumber, NOTHING } from "./format.js";

const MOST_WORKERS = 200;
const MOST_CHECKPOINTS = 50;
const WORKER_HEADINGS = ["Rank", "Worker", "State", "Host", "Process", "Step", "Phase", "Lag"];
const CHECKPOINT_HEADINGS = ["Step", "Made at", "Size", "Of that written", "State", "Restored by a drill"];

/** A table of which the first so many rows are drawn, and what is said of the rest. */
class Rows {
  #rows;
  #note = element("p", { class: "quiet" });

  constructor(caption, headings, numbers) {
    this.#rows = table(caption, headings, numbers);
    this.element = element("div", {}, this.#note, this.#rows.frame);
  }

  show(found, most, describe, none) {
    const count = formatNumber(found.length);
    const some = `The first ${formatNumber(most)} of ${count}.`;
    setText(this.#note, found.length === 0 ? none : found.length > most ? some : `${count} in all.`);
    this.#rows.body.replaceChildren(...found.slice(0, most).map(describe));
  }
}

/** The workers, as their coordinator published them last. */
export class Workers extends Rows {
  constructor() {
    super("Workers", WORKER_HEADINGS, [0, 4, 5, 7]);
  }

  /** Show these. */
  update(workers) {
    this.show(workers, MOST_WORKERS, describeWorker, "No worker is known at the moment.");
  }
}

/** The checkpoints, newest first. */
export class Checkpoints extends Rows {
  constructor() {
    super("Checkpoints", CHECKPOINT_HEADINGS, [0, 2, 3]);
  }

  /** Show these. */
  update(checkpoints) {
    this.show(checkpoints, MOST_CHECKPOINTS, describeCheckpoint, "No checkpoint was made yet.");
  }
}

function describeWorker(worker) {
  return row(
    [
      worker.rank === null ? NOTHING : String(worker.rank),
      worker.worker_id,
      worker.state,
      worker.host ?? NOTHING,
      worker.pid === null ? NOTHING : String(worker.pid),
      formatNumber(worker.step),
      worker.phase ?? NOTHING,
      formatDuration(worker.lag_s),
    ],
    [0, 4, 5, 7],
  );
}

function describeCheckpoint(checkpoint) {
  const { verified_at_s: verifiedAtS } = checkpoint;
  return row(
    [
      formatNumber(checkpoint.step),
      formatMoment(checkpoint.made_at_s),
      formatBytes(checkpoint.num_bytes),
      formatBytes(checkpoint.num_bytes_written),
      checkpoint.state,
      verifiedAtS === null ? NOTHING : formatMoment(verifiedAtS),
    ],
    [0, 2, 3],
  );
}
