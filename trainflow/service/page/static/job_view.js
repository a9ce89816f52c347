// One job: kept as it is by asking each second what is new, and by a stream of its events.

import { ask, jobPath } from "./api.js";
import { element, section, setText } from "./dom.js";
import { EventList } from "./event_list.js";
import { BegunAnew, followEvents } from "./event_stream.js";
import { decideNextLook, describeLoss, describeWait, isUnknown } from "./first_look.js";
import { formatMoment } from "./format.js";
import { JobCharts, METRICS } from "./job_charts.js";
import { JobFigures } from "./job_figures.js";
import { describeStaleness, hasEnded, isStale } from "./job_state.js";
import { Checkpoints, Nodes, Workers } from "./job_tables.js";
import { LogView } from "./log_view.js";
import { pause, repeat, untilHidden, waitVisible } from "./pacing.js";
import { Recoveries } from "./recoveries.js";
import { Series } from "./series.js";

const EVERY_S = 1;
const DETAILS_EVERY_S = 2;
const ENDED_EVERY_S = 5;
const REDRAW_MS = 1000;
const MOST_EVENTS = 10_000;
const CHANGES_CHECKPOINTS = /^(checkpoint|drill)/;

/** The view of one job. */
export class JobView {
  #job = null;
  #receivedMs = 0;
  #series = new Series();
  #generation = 0;
  #known = [];
  #troubles = new Map();
  #isDue = true;
  #looks = 0;
  #figures = new JobFigures();
  #charts = new JobCharts();
  #recoveries = new Recoveries();
  #workers = new Workers();
  #nodes = new Nodes();
  #checkpoints = new Checkpoints();
  #about = element("p", { class: "quiet" }, "Asking for the job …");
  #reason = element("p", { class: "notice", hidden: true });
  #config = element("pre");
  #logs;
  #parts;

  constructor(jobId, { notices, spoken }) {
    this.jobId = jobId;
    this.title = jobId;
    this.notices = notices;
    this.events = new EventList(spoken);
    this.#logs = new LogView(jobId, (error, waitS) => this.#noteTrouble("log", error, waitS));
    this.#parts = element(
      "div",
      { hidden: true },
      this.#reason,
      this.#figures.element,
      section("Charts", this.#charts.element),
      section("Events", this.events.element),
      section("Recoveries", this.#recoveries.element),
      section("Workers", this.#workers.element),
      section("Logs", this.#logs.element),
      section("Nodes", this.#nodes.element),
      section("Checkpoints", this.#checkpoints.element),
      section(
        "Configuration",
        element("details", {}, element("summary", {}, "Show it"), this.#config),
      ),
    );
    this.element = element(
      "div",
      {},
      element("p", {}, element("a", { href: "#/" }, "All jobs")),
      element("h1", { tabindex: "-1" }, jobId),
      this.#about,
      this.#parts,
    );
  }

  /**
   * Keep all of it as it is, until the signal ends it. Rejects if the service refuses it; with
   * `BegunAnew` if the job is to be shown anew.
   */
  async run(signal) {
    const failed = new AbortController();
    const either = AbortSignal.any([signal, failed.signal]);
    const timer = setInterval(() => document.hidden || this.#draw(), REDRAW_MS);
    try {
      await this.#repeat("first", either, () => this.#lookForJob(either));
      await this.#keep(either);
    } finally {
      failed.abort();
      clearInterval(timer);
    }
  }

  async #keep(signal) {
    try {
      await Promise.all([
        this.#repeat("job", signal, () => this.#lookAtJob(signal)),
        this.#repeat("metrics", signal, () => this.#lookAtMetrics(signal)),
        this.#repeat("workers", signal, () => this.#lookAtWorkers(signal)),
        this.#repeat("checkpoints", signal, () => this.#lookAtCheckpoints(signal)),
        this.#logs.run(signal),
        this.#follow(signal),
      ]);
    } catch (error) {
      throw isUnknown(error) ? new BegunAnew(describeLoss(this.jobId)) : error;
    }
  }

  #repeat(about, signal, action) {
    return repeat(action, signal, (error, waitS) => this.#noteTrouble(about, error, waitS));
  }

  #noteTrouble(about, error, waitS) {
    this.#troubles.delete(about);
    if (error !== null) {
      this.#troubles.set(about, [error, waitS]);
    }
    // One notice tells of all that fails: it is the same service.
    const [worst] = [...this.#troubles.values(), [null, 0]];
    this.notices.setTrouble("connection", ...worst);
  }

  /** Look until the job is there; a while after it was submitted the service does not know it. */
  async #lookForJob(signal) {
    try {
      await this.#lookAtJob(signal);
    } catch (error) {
      this.#looks += isUnknown(error) ? 1 : 0;
      const waitS = decideNextLook(this.#looks, Math.random());
      if (!isUnknown(error) || waitS === null) {
        throw error;
      }
      this.notices.set("unknown", describeWait(this.jobId, waitS));
      return waitS;
    }
    this.notices.set("unknown", null);
    this.#parts.hidden = false;
    return null;
  }

  async #lookAtJob(signal) {
    const job = await ask(jobPath(this.jobId), signal);
    this.#job = job;
    this.#receivedMs = performance.now();
    this.#draw();
    return this.#pace(EVERY_S);
  }

  async #lookAtMetrics(signal) {
    if (this.#series.lastStep === this.#job.last_step) {
      return EVERY_S;
    }
    const names = METRICS.map((name) => `&name=${name}`).join("");
    const generation = this.#generation;
    const path = jobPath(this.jobId, `/metrics?since_step=${this.#series.lastStep}${names}`);
    const { points } = await ask(path, signal);
    // Else the run went back meanwhile, and these steps may be void.
    if (generation === this.#generation) {
      this.#series.add(points);
    }
    return this.#pace(DETAILS_EVERY_S);
  }

  async #lookAtWorkers(signal) {
    const { workers } = await ask(jobPath(this.jobId, "/workers"), signal);
    this.#workers.update(workers);
    this.#nodes.update(workers);
    return this.#pace(DETAILS_EVERY_S);
  }

  async #lookAtCheckpoints(signal) {
    if (this.#isDue) {
      this.#isDue = false;
      try {
        this.#known = (await ask(jobPath(this.jobId, "/checkpoints"), signal)).checkpoints;
      } catch (error) {
        this.#isDue = true;
        throw error;
      }
      this.#checkpoints.update(this.#known);
    }
    return EVERY_S;
  }

  async #follow(signal) {
    this.events.known = this.#job.last_event;
    let number = Math.max(0, this.events.known - MOST_EVENTS);
    while (!signal.aborted) {
      await waitVisible(signal);
      // A browser has few connections to a service: pages that nobody sees are not to hold them.
      number = await followEvents(this.jobId, number, {
        signal: untilHidden(signal),
        onEvents: (events) => this.#takeEvents(events),
        onTrouble: (error, waitS) => this.#noteTrouble("events", error, waitS),
      });
      do {
        await pause(EVERY_S, signal);
      } while (!signal.aborted && hasEnded(this.#job) && this.#job.last_event <= number);
    }
  }

  #takeEvents(events) {
    this.events.add(events);
    this.#recoveries.add(events);
    for (const { kind, data } of events) {
      if (kind === "resumed" && Number.isInteger(data.step)) {
        this.#generation += 1;
        this.#series.goBack(data.step);
      }
      this.#isDue ||= CHANGES_CHECKPOINTS.test(kind);
    }
  }

  #pace(usualS) {
    return hasEnded(this.#job) ? ENDED_EVERY_S : usualS;
  }

  #draw() {
    const job = this.#job;
    if (job === null) {
      return;
    }
    const sinceReceivedS = (performance.now() - this.#receivedMs) / 1000;
    const { points } = this.#series;
    this.#figures.update(job, sinceReceivedS, {
      loss: points.at(-1)?.values.loss?.mean,
      recoveries: this.#recoveries,
      newestCheckpoint: this.#known.find((each) => each.state === "kept") ?? null,
    });
    this.#charts.update(points, this.#known);
    const labels = Object.entries(job.labels).map(([key, value]) => `${key}=${value}`);
    const created = `created ${formatMoment(job.created_at_s)}`;
    setText(this.#about, [job.name, created, ...labels, job.directory].join(" · "));
    setText(this.#reason, job.reason === null ? "" : `It has ended: ${job.reason}`);
    this.#reason.hidden = job.reason === null;
    setText(this.#config, JSON.stringify(job.config, null, 2));
    this.#tellAge(job, sinceReceivedS);
  }

  #tellAge(job, sinceReceivedS) {
    const stale = isStale(job, sinceReceivedS);
    this.element.classList.toggle("is-stale", stale);
    const text =
      `Stale: the last status is of ${formatMoment(job.published_at_s ?? 0)}. ` +
      `${describeStaleness(job)} What is shown is the last known state.`;
    this.notices.set("stale", stale && this.#troubles.size === 0 ? text : null);
  }
}
