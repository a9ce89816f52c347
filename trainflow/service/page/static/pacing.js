// When to ask again.

import { ConnectionLost, ServiceError } from "./api.js";

const FIRST_S = 1;
const MOST_S = 15;

/** Return how long to wait after so many failures in a row: twice as long each time. Pure. */
export function decideDelay(failures, retryAfterS, chance) {
  const usual = Math.min(MOST_S, FIRST_S * 2 ** Math.min(failures - 1, 10));
  return Math.max(retryAfterS, usual * (0.75 + chance / 2));
}

/** Whether to ask again after an error. Pure. */
export function mayPass(error) {
  return error instanceof ConnectionLost || (error instanceof ServiceError && error.passes);
}

/** Wait so many seconds; less, if the signal ends it, or the machine is back on a network. */
export function pause(seconds, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      window.removeEventListener("online", done);
      resolve();
    };
    const timer = setTimeout(done, seconds * 1000);
    signal.addEventListener("abort", done);
    window.addEventListener("online", done);
    if (signal.aborted) {
      done();
    }
  });
}

/**
 * Run something again and again until the signal ends it.
 *
 * `action` returns after how many seconds to run it again; null: never. `onTrouble` takes the error
 * and the seconds until the next try, and null once all is well. Rejects with what does not pass.
 */
export async function repeat(action, signal, onTrouble) {
  let failures = 0;
  while (!signal.aborted) {
    let waitS;
    try {
      waitS = await action();
      failures = 0;
      onTrouble(null, 0);
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      if (!mayPass(error)) {
        throw error;
      }
      failures += 1;
      waitS = decideDelay(failures, error.retryAfterS || 0, Math.random());
      onTrouble(error, waitS);
    }
    if (waitS === null) {
      return;
    }
    await pause(waitS, signal);
  }
}
