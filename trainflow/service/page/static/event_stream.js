// Follow a job's events: server-sent events, read by fetch since EventSource can't send a token.

import { jobPath, open, reach } from "./api.js";
import { repeat } from "./pacing.js";

const SILENT_MS = 45_000;
const AT_ONCE_S = 0.05;
const AFTER_NOTHING_S = 1;
const MOST_UNFINISHED = 8 * 1024 * 1024;
const LAST = new Set(["end", "anew"]);

/** What was shown of a job is no longer what the service knows of it. */
export class BegunAnew extends Error {}

/** Reads events out of a text that comes in pieces (HTML standard, section 9.2.6). */
export class EventParser {
  #rest = "";
  #name = "";
  #id = null;
  #data = [];

  /** Return the events that are complete with this piece. */
  push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    if (this.#rest.length > MOST_UNFINISHED) {
      throw new Error("a line of the stream has no end");
    }
    return lines.map((line) => this.#take(line)).filter((event) => event !== null);
  }

  #take(line) {
    if (line === "") {
      const event = { name: this.#name || "message", id: this.#id, data: this.#data.join("\n") };
      const isEvent = this.#data.length > 0;
      this.#name = "";
      this.#data = [];
      return isEvent ? event : null;
    }
    const [, field, value] = /^([^:]*):? ?([^]*)$/.exec(line);
    if (field === "data") {
      this.#data.push(value);
    } else if (field === "event") {
      this.#name = value;
    } else if (field === "id") {
      this.#id = value;
    }
    return null;
  }
}

/**
 * Follow a job's events after a number until it has ended; then resolve with the newest number.
 *
 * `onEvents` takes a list of them, in order and each once, over every reconnection. Rejects with
 * `BegunAnew` if the service has lost what it has told.
 */
export async function followEvents(jobId, after, { signal, onEvents, onTrouble }) {
  const position = { number: after };
  const follow = async (onOpen) => {
    const before = position.number;
    const last = await readStream(jobId, position, signal, { onOpen, onEvents });
    if (last === "anew") {
      throw new BegunAnew(describeLoss(position.number));
    }
    if (last === "end") {
      return null;
    }
    return position.number > before ? AT_ONCE_S : AFTER_NOTHING_S;
  };
  await repeat(follow, signal, onTrouble);
  return position.number;
}

function describeLoss(number) {
  return (
    `The service has lost the events that it told, up to number ${number}. What it knows now is ` +
    "shown from the beginning."
  );
}

/**
 * Read one stream. Resolves with "end" if the job has ended, with "anew" if what was read is lost,
 * else with null. Fails if it breaks off, or falls silent.
 */
async function readStream(jobId, position, signal, { onOpen, onEvents }) {
  const silence = new AbortController();
  const either = AbortSignal.any([signal, silence.signal]);
  const restart = () => setTimeout(() => silence.abort(), SILENT_MS);
  let timer = restart();
  try {
    return await reach(signal, async () => {
      const answer = await open(jobPath(jobId, "/events"), either, {
        Accept: "text/event-stream",
        "Last-Event-ID": String(position.number),
      });
      onOpen();
      if (answer.status === 204) {
        return "end";
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) {
          return null;
        }
        clearTimeout(timer);
        timer = restart();
        const last = takeEvents(parser.push(value), position, onEvents);
        if (last !== null) {
          return last;
        }
      }
    });
  } finally {
    clearTimeout(timer);
    silence.abort(); // Whatever the reason: nothing is to keep the connection open.
  }
}

function takeEvents(parsed, position, onEvents) {
  const fresh = parsed
    .filter((each) => each.name === "message" && Number(each.id) > position.number)
    .map((each) => JSON.parse(each.data));
  if (fresh.length > 0) {
    position.number = fresh.at(-1).number;
    onEvents(fresh);
  }
  return parsed.find((each) => LAST.has(each.name))?.name ?? null;
}
