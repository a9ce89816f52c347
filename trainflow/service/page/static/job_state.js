// What a job's state and its status say. Pure.

const ENDED = new Set(["succeeded", "failed", "stopped"]);
const STALE_AFTER_S = 5;

/** Whether nothing follows, unless the job is resumed. */
export function hasEnded(job) {
  return ENDED.has(job.state);
}

/** Return how old a job's status is now, or was as it ended; null before the first one. */
export function ageOf(job, sinceReceivedS) {
  if (job.stale_s === null) {
    return null;
  }
  return hasEnded(job) ? job.stale_s : job.stale_s + sinceReceivedS;
}

/** Whether a status is so old that it may be wrong: coordinators publish each second. */
export function isStale(job, sinceReceivedS) {
  const age = ageOf(job, sinceReceivedS);
  return age !== null && age > STALE_AFTER_S;
}

/** Return why a status may be so old, as a sentence. */
export function describeStaleness(job) {
  if (hasEnded(job)) {
    return "What came between it and the job's end was never written, or its cluster was gone.";
  }
  return typeof job.history_problem === "string"
    ? `The history can't be kept up for now: ${job.history_problem}.`
    : "The job's coordinator restarts or can't write its record, its cluster is gone, or nothing keeps the history.";
}

/** Return how long the phases of a recovery took, out of its event; all in seconds. */
export function measureRecovery(event) {
  const { data } = event;
  const between = (from, to) =>
    typeof data[from] === "number" && typeof data[to] === "number" ? data[to] - data[from] : null;
  return {
    number: event.number,
    atS: event.at_s,
    tookS: between("noticed_at_s", "committed_at_s"),
    regroupS: between("noticed_at_s", "begun_at_s"),
    healS: between("begun_at_s", "healed_at_s"),
    stepS: between("healed_at_s", "committed_at_s"),
    stepsLost: data.steps_lost ?? null,
    causes: Array.isArray(data.causes) ? data.causes.map(String).join("; ") : "",
  };
}

/** Return of each node that has members its slowest rank, that of the slowest node first. */
export function findSlowest(workers) {
  const timed = workers.filter((each) => each.rank !== null && typeof each.compute_s === "number");
  const median = medianOf(timed.map((each) => each.compute_s));
  const nodes = new Map();
  for (const { host, rank, compute_s: computeS } of timed) {
    const known = nodes.get(host);
    const isSlowest = known === undefined || computeS > known.computeS;
    const slowest = isSlowest ? { rank, computeS } : { rank: known.rank, computeS: known.computeS };
    nodes.set(host, { host, numRanks: (known?.numRanks ?? 0) + 1, ...slowest });
  }
  return [...nodes.values()]
    .map((node) => ({ ...node, ratio: median > 0 ? node.computeS / median : null }))
    .toSorted((a, b) => b.computeS - a.computeS || a.rank - b.rank);
}

/** Return the middle one of some numbers; null of none. */
export function medianOf(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  if (sorted.length === 0) {
    return null;
  }
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
