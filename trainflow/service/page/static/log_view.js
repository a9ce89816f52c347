// What a job's driver and its workers have printed: the last lines of one of them, as they come.
//
// It is asked for each second: a browser has few connections to a service, and a stream would hold one.

import { ask, askBytes, jobPath, ServiceError } from "./api.js";
import { element, setText } from "./dom.js";
import { formatBytes } from "./format.js";
import { LogChoice } from "./log_choice.js";
import { LastLines } from "./log_lines.js";
import { repeat, waitEnded } from "./pacing.js";

const EVERY_S = 1;
const LIST_EVERY = 5; // looks
const TAIL_BYTES = 65_536;
const AT_END_PX = 8;

/** The section with the logs. Nothing is asked while it is closed. */
export class LogView {
  #jobId;
  #onTrouble;
  #changed = new AbortController();
  #choice = new LogChoice(() => this.#change());
  #follow = element("input", { type: "checkbox", id: "log-follow", checked: true });
  #text = element("pre", { class: "log" });
  #frame = element("div", { class: "scrolled", tabindex: "0", role: "region" }, this.#text);
  #note = element("p", { class: "quiet" });
  #looks = 0;
  #shown = null;
  #isDue = true; // to be read, followed or not

  constructor(jobId, onTrouble) {
    this.#jobId = jobId;
    this.#onTrouble = onTrouble;
    this.element = element(
      "details",
      {},
      element("summary", {}, "Show what the driver and the workers have printed"),
      element(
        "p",
        { class: "filter" },
        this.#choice.element,
        " ",
        this.#follow,
        element("label", { for: "log-follow" }, " Follow"),
      ),
      this.#note,
      this.#frame,
    );
    this.element.addEventListener("toggle", () => this.#change());
    // Who no longer follows wants what is shown to stay: nothing is read for that.
    this.#follow.addEventListener("change", () => this.#changed.abort());
    this.#nameFrame();
  }

  /**
   * Read what is chosen while it is open, until the signal ends it. If it isn't followed, it is read
   * once when it is chosen or opened.
   */
  async run(signal) {
    while (!signal.aborted) {
      this.#changed = new AbortController();
      const either = AbortSignal.any([signal, this.#changed.signal]);
      if (this.element.open && (this.#isDue || this.#follow.checked)) {
        await repeat(() => this.#look(either), either, this.#onTrouble);
      }
      await waitEnded(either);
      if (!signal.aborted) {
        this.#onTrouble(null, 0);
      }
    }
  }

  #change() {
    this.#looks = 0; // so that the list is new, too
    this.#isDue = true;
    this.#nameFrame();
    this.#changed.abort();
  }

  #nameFrame() {
    this.#frame.setAttribute("aria-label", `Log of ${this.#choice.name}`);
  }

  async #look(signal) {
    if (this.#looks % LIST_EVERY === 0) {
      const { workers } = await ask(jobPath(this.#jobId, "/logs/workers"), signal);
      this.#choice.update(workers);
      this.#nameFrame();
    }
    this.#looks += 1;
    await this.#read(this.#choice.worker, signal);
    this.#isDue = false;
    return this.#follow.checked ? EVERY_S : null;
  }

  async #read(worker, signal) {
    const shown = this.#shown?.worker === worker ? this.#shown : null;
    const from = shown === null ? `tail=${TAIL_BYTES}` : `offset=${shown.offset}`;
    const of = worker === "" ? "" : `&worker=${encodeURIComponent(worker)}`;
    try {
      const path = jobPath(this.#jobId, `/logs?${from}${of}`);
      const { headers, bytes } = await askBytes(path, signal);
      this.#take(worker, shown, Number(headers.get("log-offset")), bytes);
    } catch (error) {
      // After a change it is no answer to what is asked now.
      if (signal.aborted || !(error instanceof ServiceError && error.status === 404)) {
        throw error;
      }
      this.#shown = null;
      setText(this.#text, "");
      setText(this.#note, `Nothing is there yet (${error.message}).`);
    }
  }

  #take(worker, before, begin, bytes) {
    const shown = before ?? { worker, begin, offset: begin, lines: new LastLines(begin > 0) };
    if (begin > shown.offset) {
      shown.lines.skip(begin - shown.offset);
    }
    shown.lines.push(bytes);
    shown.offset = begin + bytes.length;
    this.#shown = shown;
    setText(this.#note, describe(this.#jobId, shown));
    this.#write(shown.lines.text, before === null);
  }

  /** Show a text, at its end: unless the reader has scrolled away from it. */
  #write(text, isOther) {
    const frame = this.#frame;
    const isAtEnd = frame.scrollTop + frame.clientHeight >= frame.scrollHeight - AT_END_PX;
    setText(this.#text, text);
    if (isOther || isAtEnd) {
      frame.scrollTop = frame.scrollHeight;
    }
  }
}

function describe(jobId, { worker, offset }) {
  const whole = `trainflow logs ${jobId}${worker === "" ? "" : ` --worker ${worker}`}`;
  return offset === 0
    ? "Nothing has been printed yet."
    : `The last lines of ${formatBytes(offset)} that were printed. All that is kept: ${whole}`;
}
