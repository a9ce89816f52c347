// All jobs, the newest first.

import { ask } from "./api.js";
import { element, row, setText, table } from "./dom.js";
import { formatMoment, formatNumber } from "./format.js";
import { isStale } from "./job_state.js";
import { pause, repeat } from "./pacing.js";

const EVERY_S = 2;
const PAGE = 50;
const MOST = 1000;
const STATES = [
  "pending",
  "running",
  "recovering",
  "waiting",
  "stopping",
  "succeeded",
  "failed",
  "stopped",
];

/** The view of all jobs. */
export class JobsView {
  title = "Jobs";
  #limit = PAGE;
  #state = "";
  #asked = new AbortController();
  #known = new Map();
  #rows = table("Jobs", ["Job", "State", "Step", "Attempt", "Created", "Last heard of"], [2, 3]);
  #note = element("p", { class: "quiet", role: "status" }, "Asking for the jobs …");
  #more = element("button", { type: "button", hidden: true }, "Show older jobs");
  #filter = element(
    "select",
    { id: "state" },
    element("option", { value: "" }, "all"),
    ...STATES.map((state) => element("option", { value: state }, state)),
  );

  constructor({ notices }) {
    this.notices = notices;
    this.element = element(
      "div",
      {},
      element("h1", { tabindex: "-1" }, "Jobs"),
      element("p", { class: "filter" }, element("label", { for: "state" }, "State "), this.#filter),
      this.#rows.frame,
      this.#note,
      this.#more,
    );
    this.#filter.addEventListener("change", () => {
      this.#state = this.#filter.value;
      this.#asked.abort();
    });
    this.#more.addEventListener("click", () => {
      this.#limit = Math.min(MOST, this.#limit * 2);
      this.#asked.abort();
    });
  }

  /** Keep the list as it is, until the signal ends it. */
  async run(signal) {
    const look = async () => {
      const state = this.#state === "" ? "" : `&state=${this.#state}`;
      this.#asked = new AbortController();
      const isChanged = this.#asked.signal;
      const page = await ask(`v1/jobs?limit=${this.#limit}${state}`, signal);
      if (!isChanged.aborted) {
        this.#show(page);
        await pause(EVERY_S, AbortSignal.any([signal, isChanged]));
      }
      return 0;
    };
    await repeat(look, signal, (error, waitS) => this.notices.setTrouble("jobs", error, waitS));
  }

  #show(page) {
    this.#place(page.jobs);
    const hasMore = page.next_cursor !== null;
    this.#more.hidden = !hasMore || this.#limit >= MOST;
    setText(this.#note, describeCount(page.jobs.length, hasMore, this.#state));
  }

  /** Show jobs; a row that stays is not touched, so that a link in it keeps the focus. */
  #place(jobs) {
    const { body } = this.#rows;
    const before = this.#known;
    this.#known = new Map(
      jobs.map((job) => [job.job_id, before.get(job.job_id) ?? new JobRow(job.job_id)]),
    );
    for (const [jobId, { element: gone }] of before) {
      if (!this.#known.has(jobId)) {
        gone.remove();
      }
    }
    jobs.forEach((job, index) => {
      const known = this.#known.get(job.job_id);
      known.update(job);
      if (body.children[index] !== known.element) {
        body.insertBefore(known.element, body.children[index] ?? null);
      }
    });
  }
}

/** One job's row. */
class JobRow {
  #name = element("span", { class: "quiet" });
  #state = element("span");
  #texts = [0, 1, 2, 3].map(() => element("span"));

  constructor(jobId) {
    const link = element("a", { href: `#/jobs/${encodeURIComponent(jobId)}` }, jobId);
    const named = element("span", {}, link, element("br"), this.#name);
    this.element = row([named, this.#state, ...this.#texts], [2, 3]);
  }

  update(job) {
    setText(this.#name, job.name);
    const stale = isStale(job, 0);
    setText(this.#state, stale ? `${job.state} (stale)` : job.state);
    this.#state.className = `state state-${stale ? "stale" : job.state}`;
    const times = [job.created_at_s, job.updated_at_s].map(formatMoment);
    const texts = [formatNumber(job.last_step), formatNumber(job.attempt), ...times];
    texts.forEach((text, index) => setText(this.#texts[index], text));
  }
}

function describeCount(count, hasMore, state) {
  if (count === 0) {
    return state === ""
      ? "There are no jobs yet. Begin one with `trainflow run`, or POST it to /v1/jobs."
      : `No job is ${state}.`;
  }
  const all = count === 1 ? "1 job." : `${formatNumber(count)} jobs.`;
  return hasMore ? `The newest ${formatNumber(count)} jobs; there are older ones.` : all;
}
