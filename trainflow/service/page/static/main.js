// Show the view that the address names: #/ all jobs, #/jobs/ID one of them.

import { ask, dropToken, readToken, ServiceError } from "./api.js";
import { element } from "./dom.js";
import { BegunAnew } from "./event_stream.js";
import { JobView } from "./job_view.js";
import { JobsView } from "./jobs_view.js";
import { Notices } from "./notices.js";
import { repeat } from "./pacing.js";
import { TokenView } from "./token_view.js";

const main = document.getElementById("main");
const forget = document.getElementById("forget");
const shared = {
  notices: new Notices(document.getElementById("notices")),
  spoken: document.getElementById("spoken"),
};
let current = new AbortController();
let needsToken = false;

/** A view that only says something. */
class MessageView {
  constructor(title, text) {
    this.title = title;
    this.element = element(
      "div",
      {},
      element("h1", { tabindex: "-1" }, title),
      element("p", {}, text),
      element("p", {}, element("a", { href: "#/" }, "All jobs")),
    );
  }

  async run() {}
}

/** Return the view that an address names. */
function viewOf(hash) {
  const named = /^#\/jobs\/([^/]+)$/.exec(hash);
  if (named !== null) {
    try {
      return new JobView(decodeURIComponent(named[1]), shared);
    } catch (error) {
      if (!(error instanceof URIError)) {
        throw error;
      }
    }
  }
  return ["", "#", "#/"].includes(hash)
    ? new JobsView(shared)
    : new MessageView("No such page", `Got the address ${hash}, expected #/ or #/jobs/ID.`);
}

/** Return the view that tells of what the service has refused. */
function refusalView(error) {
  if (!(error instanceof ServiceError)) {
    return new MessageView("The page has failed", `${error}. Load it again.`);
  }
  if (error.status === 401 || error.status === 403) {
    dropToken();
    return new TokenView(error.message, route);
  }
  return error.status === 404
    ? new MessageView("There is no such job", error.message)
    : new MessageView("The service refuses that", error.message);
}

/** Show a view; the focus goes to its heading if the reader has asked for it. */
function show(view, { isAsked }) {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  shared.notices.clear();
  forget.hidden = readToken() === null;
  document.title = `${view.title} · TrainFlow`;
  main.replaceChildren(view.element);
  if (isAsked) {
    view.element.querySelector("h1").focus();
  }
  view.run(signal).catch((error) => {
    if (signal.aborted) {
      return;
    }
    if (error instanceof BegunAnew) {
      show(viewOf(location.hash), { isAsked: false });
      shared.notices.set("anew", error.message);
    } else {
      show(refusalView(error), { isAsked: false });
    }
  });
}

function chooseView() {
  const isLacking = needsToken && readToken() === null;
  return isLacking ? new TokenView("", route) : viewOf(location.hash);
}

function route() {
  show(chooseView(), { isAsked: true });
}

async function begin() {
  const look = async () => {
    needsToken = (await ask("readyz", current.signal)).authentication === "tokens";
    return null;
  };
  await repeat(look, current.signal, (error, waitS) =>
    shared.notices.setTrouble("connection", error, waitS),
  );
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // Its address is none of a view.
    main.focus();
  });
  window.addEventListener("hashchange", route);
  forget.addEventListener("click", () => {
    dropToken();
    route();
  });
  show(chooseView(), { isAsked: false });
}

begin().catch((error) => show(refusalView(error), { isAsked: false }));
