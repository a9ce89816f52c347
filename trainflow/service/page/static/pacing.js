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

/** Wait until a signal ends what is under way. */
export function waitEnded(signal) {
  return new Promise((resolve) => {
    signal.addEventListener("abort", resolve, { once: true });
    if (signal.aborted) {
      resolve();
    }
  });
}

/** Wait until the page can be seen: less, if the signal ends it. */
export function waitVisible(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (!document.hidden || signal.aborted) {
        document.removeEventListener("visibilitychange", look);
        signal.removeEventListener("abort", look);
        resolve();
      }
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}

/** Return a signal that ends what is under way with the given one, or once the page is hidden. */
export function untilHidden(signal) {
  const hidden = new AbortController();
  const either = AbortSignal.any([signal, hidden.signal]);
  const look = () => document.hidden && hidden.abort();
  document.addEventListener("visibilitychange", look, { signal: either });
  return either;
}

/**
 * Run something again and again, while the page can be seen, until the signal ends it.
 *
 * `action` returns after how many seconds to run it again; null: never. What goes on for long calls
 * what it is given once all is well: a failure after that is the first again. `onTrouble` takes the
 * error and the seconds until the next try, and null once all is well. Rejects with what does not
 * pass.
 */
export async function repeat(action, signal, onTrouble) {
  let failures = 0;
  const onWell = () => {
    failures = 0;
    onTrouble(null, 0);
  };
  while (!signal.aborted) {
    let waitS;
    await waitVisible(signal);
    try {
      waitS = await action(onWell);
      onWell();
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
