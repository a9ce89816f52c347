// What is wrong at the moment, above everything else.

import { element, setText } from "./dom.js";

/** Notices by what they are about: one is replaced by the next, and goes when all is well. */
export class Notices {
  #place;
  #shown = new Map();

  constructor(place) {
    this.#place = place;
  }

  /** Show a notice, or with null take it away. */
  set(about, text) {
    const shown = this.#shown.get(about);
    if (text === null) {
      shown?.remove();
      this.#shown.delete(about);
    } else if (shown === undefined) {
      const notice = element("p", { class: "notice" }, text);
      this.#shown.set(about, notice);
      this.#place.append(notice);
    } else {
      setText(shown, text);
    }
  }

  /** Take all of them away. */
  clear() {
    this.#place.replaceChildren();
    this.#shown.clear();
  }

  /** Show that the service does not answer, and when it is asked again; with null that it does. */
  setTrouble(about, error, waitS) {
    if (error === null) {
      this.set(about, null);
      return;
    }
    const what =
      error.status === undefined
        ? `The connection to the service is lost (${error.message})`
        : `The service can't answer (${error.message})`;
    this.set(about, `${what}. What is shown may be old. Next try in ${Math.ceil(waitS)} s.`);
  }
}
