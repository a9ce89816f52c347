// A job's state in a few figures, and how old they are.

import { element, setText } from "./dom.js";
import { formatAge, formatDuration, formatNumber, NOTHING } from "./format.js";
import { ageOf, hasEnded, isStale } from "./job_state.js";

const NAMES = {
  state: "State",
  step: "Step",
  loss: "Loss",
  world: "World size",
  spares: "Spares",
  failures: "Failures",
  recoveries: "Recoveries",
  checkpoint: "Newest checkpoint",
  goodput: "Goodput",
  attempt: "Attempt",
  age: "Status",
};

/** The figures of one job. */
export class JobFigures {
  #values = {};
  #remarks = {};

  constructor() {
    const entries = Object.entries(NAMES).map(([key, name]) => {
      this.#values[key] = element("span", {}, NOTHING);
      this.#remarks[key] = element("small");
      const value = element("dd", { id: `figure-${key}` }, this.#values[key], this.#remarks[key]);
      return element("div", {}, element("dt", {}, name), value);
    });
    this.element = element("dl", { class: "figures" }, ...entries);
  }

  /** Show a job as the service told of it some seconds ago. */
  update(job, sinceReceivedS, { loss, recoveries, newestCheckpoint }) {
    const status = job.status ?? {};
    this.#set("state", job.state, job.exit_code === null ? "" : `exit code ${job.exit_code}`);
    this.#values.state.className = `state state-${job.state}`;
    const most = status.max_steps ?? null;
    this.#set("step", formatNumber(job.last_step), most === null ? "" : `of ${formatNumber(most)}`);
    this.#set("loss", formatNumber(loss));
    this.#set("world", formatNumber(status.world_size));
    const lost = status.spares_lost ? `${formatNumber(status.spares_lost)} lost so far` : "";
    this.#set("spares", formatNumber(status.spares), lost);
    const preempted = status.preemptions ? `and ${status.preemptions} preempted` : "";
    this.#set("failures", formatNumber(status.failures), preempted);
    this.#set("recoveries", formatNumber(recoveries.count), recoveries.summary);
    this.#setCheckpoint(job, sinceReceivedS, newestCheckpoint);
    this.#setGoodput(status.goodput?.ratio);
    this.#set("attempt", formatNumber(job.attempt));
    this.#set("age", ...describeAge(job, sinceReceivedS));
  }

  #set(key, text, remark = "") {
    setText(this.#values[key], text);
    setText(this.#remarks[key], remark);
  }

  #setCheckpoint(job, sinceReceivedS, newest) {
    const step = job.status?.checkpoint ?? newest?.step ?? null;
    if (step === null) {
      this.#set("checkpoint", "none");
      return;
    }
    const behind = `${formatNumber(Math.max(0, job.last_step - step))} steps behind`;
    const age = describeCheckpointAge(job, sinceReceivedS, newest?.step === step ? newest : null);
    this.#set("checkpoint", `step ${formatNumber(step)}`, behind + age);
  }

  #setGoodput(ratio) {
    const isKnown = typeof ratio === "number";
    this.#values.goodput.closest("div").hidden = !isKnown;
    this.#set("goodput", isKnown ? `${(100 * ratio).toFixed(1)} %` : NOTHING);
  }
}

function describeCheckpointAge(job, sinceReceivedS, checkpoint) {
  const age = ageOf(job, sinceReceivedS);
  if (checkpoint === null || age === null || hasEnded(job)) {
    return "";
  }
  return `, made ${formatDuration(job.published_at_s + age - checkpoint.made_at_s)} ago`;
}

function describeAge(job, sinceReceivedS) {
  const age = ageOf(job, sinceReceivedS);
  if (hasEnded(job)) {
    return isStale(job, sinceReceivedS)
      ? ["final", `what it tells of training is of ${formatAge(age)} before the end`]
      : ["final", ""];
  }
  if (age === null) {
    return ["none yet", "its coordinator has not published any"];
  }
  const remark = isStale(job, sinceReceivedS) ? "stale: may be wrong by now" : "";
  return [`${formatAge(age)} old`, remark];
}
