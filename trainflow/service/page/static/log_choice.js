// Which log is shown: the driver's, or one of the workers'.

import { element, setText } from "./dom.js";

/** A choice among the logs that there are. It stays as it was chosen while they change. */
export class LogChoice {
  #options = new Map();
  #select = element("select", { id: "log-of" }, element("option", { value: "" }, "the driver"));
  element = element("span", {}, element("label", { for: "log-of" }, "Log of "), this.#select);

  constructor(onChange) {
    this.#select.addEventListener("change", onChange);
  }

  /** Id of the worker that was chosen; an empty text: the driver. */
  get worker() {
    return this.#select.value;
  }

  /** The one that was chosen, in words. */
  get name() {
    return this.#select.selectedOptions[0].textContent;
  }

  /** Offer these workers; one that was chosen is offered as long as it is. */
  update(workers) {
    const listed = new Set(workers.map((each) => each.worker_id));
    for (const [workerId, option] of this.#options) {
      if (!listed.has(workerId) && !option.selected) {
        option.remove();
        this.#options.delete(workerId);
      }
    }
    for (const each of workers) {
      if (!this.#options.has(each.worker_id)) {
        const option = element("option", { value: each.worker_id });
        this.#options.set(each.worker_id, option);
        this.#select.append(option);
      }
      setText(this.#options.get(each.worker_id), describeWorker(each));
    }
  }
}

/** Return what a worker is called. Pure. */
export function describeWorker({ worker_id: workerId, rank }) {
  return rank === null ? `worker ${workerId}` : `worker ${workerId}, rank ${rank}`;
}
