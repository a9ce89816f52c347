// Ask for a token, where the service wants one.

import { isSendable, keepToken } from "./api.js";
import { element, setText } from "./dom.js";

/** The view that asks for a token. */
export class TokenView {
  title = "Token";
  #wrong;

  /** Take why it is asked for, if one was refused, and what to do when one is given. */
  constructor(refusal, onGiven) {
    const input = element("input", {
      id: "token",
      type: "password",
      autocomplete: "off",
      spellcheck: "false",
      required: true,
      "aria-describedby": "token-wrong token-how",
    });
    this.#wrong = element("p", { id: "token-wrong", class: "notice bad", role: "alert" }, refusal);
    this.#wrong.hidden = refusal === "";
    const form = element(
      "form",
      {},
      element("label", { for: "token" }, "Token"),
      input,
      element("button", { type: "submit" }, "Use this token"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const token = input.value.trim();
      if (!isSendable(token)) {
        this.#wrong.hidden = false;
        setText(
          this.#wrong,
          "Got a text that is no token, expected one word of plain letters, digits and signs; " +
            "copy it again.",
        );
        return;
      }
      keepToken(token);
      onGiven();
    });
    this.element = element(
      "div",
      {},
      element("h1", { tabindex: "-1" }, "This service asks for a token"),
      this.#wrong,
      form,
      element(
        "p",
        { id: "token-how", class: "quiet" },
        "Make one with ",
        element("code", {}, "trainflow token create NAME --scope read"),
        ". It is kept in this tab alone, until it is closed.",
      ),
    );
  }

  /** Nothing changes by itself here. */
  async run() {}
}
