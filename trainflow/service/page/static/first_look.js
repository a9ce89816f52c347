// When to look again for a job that the service does not know: it may have been submitted just now.

import { ServiceError } from "./api.js";
import { decideDelay } from "./pacing.js";

const MOST_LOOKS = 8; // about a minute

/** Whether an error says that there is no such job. Pure. */
export function isUnknown(error) {
  return error instanceof ServiceError && error.status === 404;
}

/** Return after how many seconds to look again, after so many looks; null: not again. Pure. */
export function decideNextLook(looks, chance) {
  return looks >= MOST_LOOKS ? null : decideDelay(looks, 0, chance);
}

/** Return what a reader is told of a job that was there, and is not any more. Pure. */
export function describeLoss(jobId) {
  return (
    `The service no longer knows the job ${jobId}: it was erased, or the service has lost what it ` +
    "knew, and reads it in again."
  );
}

/** Return what a reader is told meanwhile. Pure. */
export function describeWait(jobId, waitS) {
  return (
    `There is no job ${jobId} yet. One that was submitted just now appears within seconds of its ` +
    `beginning. Next look in ${Math.ceil(waitS)} s.`
  );
}
