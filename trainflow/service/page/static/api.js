// Ask the service, with the reader's token.

const KEY = "trainflow-token";
const WITHIN_MS = 10_000;

/** The service has refused a request, or could not answer it. */
export class ServiceError extends Error {
  constructor(status, detail, retryAfterS = 0) {
    super(detail);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }

  /** Whether the same request may be answered later. */
  get passes() {
    return this.status === 429 || this.status >= 500;
  }
}

/** The service can't be reached, or is silent. */
export class ConnectionLost extends Error {}

/** Return the token of this tab; null without one. */
export function readToken() {
  return sessionStorage.getItem(KEY);
}

/** Keep a token until the tab is closed. */
export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

/** Forget the token. */
export function dropToken() {
  sessionStorage.removeItem(KEY);
}

/** Whether a text can be sent as a token at all. Pure. */
export function isSendable(text) {
  return /^[!-~]+$/.test(text);
}

/** Return the address of a job, or of what is told of it. Pure. */
export function jobPath(jobId, what = "") {
  return `v1/jobs/${encodeURIComponent(jobId)}${what}`;
}

/** Return an answer whose body is yet to be read; rejects unless it is a good one. */
export async function open(path, signal, headers = {}) {
  const token = readToken();
  const authorization = token === null ? {} : { Authorization: `Bearer ${token}` };
  const answer = await reach(signal, () =>
    fetch(path, { headers: { ...headers, ...authorization }, signal, cache: "no-store" }),
  );
  if (!answer.ok) {
    throw await readProblem(answer);
  }
  return answer;
}

/** Return what the service answers, as a value. */
export async function ask(path, signal) {
  const [, data] = await askWhole(path, signal, "application/json", (body) => body.json());
  return data;
}

/** Return the bytes that the service answers, and its headers. */
export async function askBytes(path, signal) {
  const [answer, data] = await askWhole(path, signal, "*/*", (body) => body.arrayBuffer());
  return { headers: answer.headers, bytes: new Uint8Array(data) };
}

async function askWhole(path, signal, kind, read) {
  const limited = AbortSignal.any([signal, AbortSignal.timeout(WITHIN_MS)]);
  const answer = await reach(signal, () => open(path, limited, { Accept: kind }));
  return [answer, await reach(signal, () => read(answer))];
}

/** Run what goes over the network; whatever fails there, but for an end on request, is one error. */
export async function reach(signal, action) {
  try {
    return await action();
  } catch (error) {
    if (signal.aborted || error instanceof ServiceError) {
      throw error;
    }
    throw new ConnectionLost(String(error.message || error));
  }
}

async function readProblem(answer) {
  const retryAfterS = Number(answer.headers.get("retry-after")) || 0;
  let detail = `got ${answer.status} ${answer.statusText}`;
  try {
    detail = String((await answer.json()).detail || detail);
  } catch {
    // From a proxy, perhaps: the status says enough.
  }
  return new ServiceError(answer.status, detail, retryAfterS);
}
