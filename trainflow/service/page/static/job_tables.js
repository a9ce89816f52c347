// A job's workers, the nodes they are on, and its checkpoints.

import { element, row, setText, table } from "./dom.js";
import { formatBytes, formatDuration, formatMoment, formatNumber, NOTHING } from "./format.js";
import { findSlowest } from "./job_state.js";

const MOST_WORKERS = 200;
const MOST_NODES = 20;
const MOST_CHECKPOINTS = 50;
const WORKER_HEADINGS = ["Rank", "Worker", "State", "Host", "Process", "Step", "Phase", "Lag", "Computes"];
const NODE_HEADINGS = ["Host", "Ranks", "Slowest rank", "It computes", "Times the median"];
const WORKER_NUMBERS = [0, 4, 5, 7, 8];
const NODE_NUMBERS = [1, 2, 3, 4];
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
    super("Workers", WORKER_HEADINGS, WORKER_NUMBERS);
  }

  /** Show these. */
  update(workers) {
    this.show(workers, MOST_WORKERS, describeWorker, "No worker is known at the moment.");
  }
}

/** The nodes with members, by the rank of each that the others wait for, the slowest first. */
export class Nodes extends Rows {
  constructor() {
    super("Nodes", NODE_HEADINGS, NODE_NUMBERS);
  }

  /** Show those of these workers. */
  update(workers) {
    const none = "How long ranks compute is not known at the moment.";
    this.show(findSlowest(workers), MOST_NODES, describeNode, none);
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
      formatDuration(worker.compute_s),
    ],
    WORKER_NUMBERS,
  );
}

function describeNode(node) {
  return row(
    [
      node.host ?? NOTHING,
      formatNumber(node.numRanks),
      String(node.rank),
      formatDuration(node.computeS),
      formatNumber(node.ratio),
    ],
    NODE_NUMBERS,
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
