// Requests to REST: with the reader's token, with time-outs, and with errors that suggest a remedy.

const TOKEN = "muster.token";
const TIMEOUT_MS = 30_000;

/** An error answer. `status` 0: no answer came. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  /** Whether a retry may help. */
  get away() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

// The token lives as long as the tab; a browser without storage keeps it as long as the page.
let held = null;

export function token() {
  try {
    return sessionStorage.getItem(TOKEN) ?? held;
  } catch {
    return held;
  }
}

export function keepToken(value) {
  held = value;
  try {
    if (value === null) sessionStorage.removeItem(TOKEN);
    else sessionStorage.setItem(TOKEN, value);
  } catch {
    // stored in memory only
  }
}

/** A path of REST with each part escaped, and its query. Parameters that are null, undefined or "" are left out. */
export function url(parts, query = {}) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== null && value !== undefined && value !== "") asked.set(name, value);
  const text = asked.toString();
  return parts.map((part) => "/" + encodeURIComponent(part)).join("") + (text ? `?${text}` : "");
}

/** A queue's name as a part of a path. The server unescapes it once more than other parts. */
export function queuePart(path) {
  return encodeURIComponent(path);
}

/** The response to a GET. (A client certificate is a credential, too: the browser sends it.) Raises ApiError, and AbortError if the signal aborts. */
export async function ask(address, signal, { stream = false } = {}) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  const ends = stream ? signal : AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]);
  let response;
  try {
    response = await fetch(address, { headers, signal: ends, cache: "no-store", credentials: "same-origin", redirect: "follow" });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError(0, error.name === "TimeoutError" ? `No answer within ${TIMEOUT_MS / 1000} s.` : "The gateway does not answer.");
  }
  if (response.ok) return response;
  throw new ApiError(response.status, await said(response));
}

/** The JSON answer to a POST that changes something. The header is one that no page of another host can send. */
export async function post(address, body) {
  const headers = { "X-Muster-Operate": "page", ...(token() ? { Authorization: `Bearer ${token()}` } : {}) };
  let response;
  try {
    response = await fetch(address, { method: "POST", headers, body, signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store", credentials: "same-origin", redirect: "error" });
  } catch {
    throw new ApiError(0, "No answer came: it may be done.");
  }
  if (!response.ok) throw new ApiError(response.status, await said(response));
  return response.json();
}

async function said(response) {
  let text = "";
  try {
    text = await response.text();
    return JSON.parse(text).message || response.statusText;
  } catch {
    return shortened(text.trim()) || response.statusText || `status ${response.status}`;
  }
}

/** A text of at most 300 characters, cut between words. */
function shortened(text) {
  return text.length <= 300 ? text : `${text.slice(0, 299).replace(/\s+\S*$/, "")} …`;
}

/** A GET's JSON, and the number of records by which the answer lags. */
export async function json(address, signal) {
  const response = await ask(address, signal);
  const lag = Number(response.headers.get("x-muster-lag-records") ?? 0);
  try {
    return { data: await response.json(), lag, headers: response.headers };
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError(0, "The answer broke off.");
  }
}

/** A GET's lines as they arrive. Ends with the stream. */
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const pieces = (rest + value).split("\n");
    rest = pieces.pop();
    for (const line of pieces) if (line) yield line;
  }
}
