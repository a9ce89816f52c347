// The charts of a job, and which of its metrics they show.

import { Chart } from "./chart.js";
import { element } from "./dom.js";
import { lagBehind, pick, splitStepTime } from "./series.js";

/** Names of the metrics that the charts need. */
export const METRICS = [
  "loss",
  "grad_norm",
  "compute_s",
  "wait_s",
  "shortest_wait_s",
  "world_size",
  "num_spares",
  "copy_lag",
];

const WIDER =
  "Where a point stands for several steps, the lighter band is from the lowest to the highest. " +
  "A cross is a value that was not finite.";

/** All charts of one job. */
export class JobCharts {
  #loss = new Chart({
    title: "Loss",
    unit: "mean over the batch",
    x: "step",
    names: ["loss"],
    note: WIDER,
  });
  #gradNorm = new Chart({
    title: "Gradient norm",
    unit: "before clipping",
    x: "step",
    names: ["gradient norm"],
    note: WIDER,
  });
  #stepTime = new Chart({
    title: "Step time by phase",
    unit: "seconds",
    x: "step",
    names: ["compute", "communicate", "wait for others"],
    stacked: true,
    note: "As the reporting rank measured it. Communicating is what computing did not hide.",
  });
  #world = new Chart({
    title: "World and spares",
    unit: "workers",
    x: "time",
    names: ["world", "spares"],
    stepped: true,
    fromZero: true,
    note: "As of each committed step.",
  });
  #lag = new Chart({
    title: "Checkpoint lag",
    unit: "steps that would be done again",
    x: "step",
    names: ["behind the newest checkpoint", "behind copies on other nodes"],
    fromZero: true,
  });

  constructor() {
    const charts = [this.#loss, this.#gradNorm, this.#stepTime, this.#world, this.#lag];
    this.element = element("div", { class: "charts" }, ...charts.map((chart) => chart.element));
  }

  /** Draw what is known now. */
  update(points, checkpoints) {
    const { compute, communicate, wait } = splitStepTime(points);
    this.#loss.update([pick(points, "loss")]);
    this.#gradNorm.update([pick(points, "grad_norm")]);
    this.#stepTime.update([compute, communicate, wait]);
    const overTime = (name) => pick(points, name, (point) => point.committed_at_s);
    this.#world.update([overTime("world_size"), overTime("num_spares")]);
    this.#lag.update([lagBehind(points, checkpoints), pick(points, "copy_lag")]);
  }
}
