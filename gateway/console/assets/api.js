// @ts-check
// Requests and streams to the gateway, and the age of the data that they returned.

const store = window.sessionStorage;
/** @type {any} The type checker's library does not declare AbortSignal.any and AbortSignal.timeout. */
const signals = AbortSignal;

/** The cluster and the bearer token of this tab. */
export const session = {
  get cluster() { return store.getItem("cluster") || ""; },
  set cluster(id) { store.setItem("cluster", id); },
  get token() { return store.getItem("token") || ""; },
  set token(t) { if (t) store.setItem("token", t); else store.removeItem("token"); },
};

/**
 * How old the data on the page is. `at` is the time of the newest answer in ms, 0 for none. `error` is
 * set while the gateway does not answer. `failing` holds the error of each refresh that fails at present.
 */
export const fresh = {
  at: 0, stale: false, ageMs: 0, error: "",
  /** @type {Map<Function, string>} */
  failing: new Map(),
};
/** @type {Set<() => void>} functions to call when fresh changes */
const watchers = new Set();
/** Calls f whenever fresh has changed. @param {() => void} f */
export const onFresh = (f) => watchers.add(f);
/** Tells the watchers that fresh has changed. */
export const freshChanged = () => watchers.forEach((f) => f());

/** A request that failed. status is 0 when there was no answer. */
export class Failure extends Error {
  /** @param {number} status @param {string} code @param {string} message @param {string} [reason] */
  constructor(status, code, message, reason = "") {
    super(message);
    this.status = status;
    this.code = code;
    this.reason = reason;
  }
}

/** Reports whether the gateway may have carried out a request that failed with e. @param {any} e */
export function unsure(e) {
  const refused = e.status >= 400 && e.status < 500;
  return !e.status || e.reason === "UNKNOWN_OUTCOME" || e.code === "DEADLINE_EXCEEDED" || (!e.code && !refused);
}

/** Reports whether the same request may succeed a moment later. @param {any} e */
export const passing = (e) => !e.status || e.status === 429 || e.status >= 500;

/** @param {Record<string, string>} extra @returns {Record<string, string>} */
function headers(extra) {
  const out = { ...extra };
  if (session.token) out.Authorization = "Bearer " + session.token;
  if (session.cluster) out["X-Persys-Cluster-ID"] = session.cluster;
  return out;
}

/** A UUIDv7. The schedulers carry out only one of several requests with the same id. */
export function requestId() {
  const b = crypto.getRandomValues(new Uint8Array(16));
  let ms = Date.now();
  for (let i = 5; i >= 0; i--) {
    b[i] = ms % 256;
    ms = Math.floor(ms / 256);
  }
  b[6] = 0x70 | (b[6] & 0x0f);
  b[8] = 0x80 | (b[8] & 0x3f);
  const x = [...b].map((v) => v.toString(16).padStart(2, "0")).join("");
  return `${x.slice(0, 8)}-${x.slice(8, 12)}-${x.slice(12, 16)}-${x.slice(16, 20)}-${x.slice(20)}`;
}

/** @param {Response} r */
async function failure(r) {
  /** @type {any} */
  let body = {};
  try {
    body = await r.json();
  } catch { /* Not the gateway's JSON: the status alone is reported. */ }
  return new Failure(r.status, body.code || "", body.error || `the gateway answered ${r.status}`, body.reason);
}

/**
 * Makes one request below /v1, within 25 seconds. Throws a Failure, or the abort error of signal.
 * @param {string} method @param {string} path @param {object} [body] @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function call(method, path, body, signal) {
  const timeout = signals.timeout(25000);
  /** @type {Record<string, string>} */
  const extra = { Accept: "application/json" };
  if (body) extra["Content-Type"] = "application/json";
  if (method !== "GET") extra["Idempotency-Key"] = requestId();
  let r;
  try {
    r = await fetch("../v1" + path, {
      method, signal: signal ? signals.any([signal, timeout]) : timeout,
      headers: headers(extra), body: body && JSON.stringify(body),
    });
  } catch (e) {
    if (signal?.aborted) throw e;
    fresh.error = "the gateway does not answer";
    freshChanged();
    const text = "The gateway does not answer; is it running, and is this machine connected?";
    throw new Failure(0, "UNREACHABLE", text);
  }
  if (!r.ok) {
    const f = await failure(r);
    if (passing(f)) {
      fresh.error = f.message;
      freshChanged();
    }
    throw f;
  }
  const out = await r.json();
  if (fresh.failing.size === 0) fresh.at = Date.now();
  fresh.error = "";
  // Answers to changes, the status of a replica and answers about rights do not say how old their data is.
  if (method === "GET" && path !== "/status" && path !== "/access") {
    fresh.stale = r.headers.get("X-Persys-Stale") === "true" || out.stale === true;
    fresh.ageMs = Number(r.headers.get("X-Persys-Age-Ms") || out.age_ms || 0);
  }
  freshChanged();
  return out;
}

/** @param {string} path @param {AbortSignal} [signal] */
export const get = (path, signal) => call("GET", path, undefined, signal);
/** @param {string} path @param {object} [body] */
export const post = (path, body) => call("POST", path, body || {});
/** @param {string} path */
export const del = (path) => call("DELETE", path);

/**
 * Returns a function that reports which permissions the caller has in a namespace; "*" means in every namespace, and
 * without a namespace it means in at least one. The function makes one request and keeps the answer. If the request
 * fails, the function reports all permissions, and its next call makes the request again; the schedulers check each
 * change anyway. A caller without roles is a machine, for which the function also reports all permissions.
 * @param {string[]} verbs @param {AbortSignal} signal @returns {(namespace?: string) => Promise<boolean[]>}
 */
export function permissions(verbs, signal) {
  /** @type {Promise<any> | undefined} */
  let known;
  return async (namespace) => {
    known ||= get("/access", signal);
    const { grants = [] } = await known.catch(() => {
      known = undefined;
      return {};
    });
    const at = (g) => g.everywhere || namespace === undefined || (g.namespaces || []).includes(namespace || "default");
    return verbs.map((verb) => grants.length === 0 || grants.some((g) => at(g) && g.permissions.includes(verb)));
  };
}

/** The query "?a=b&…" of the fields that are set; "" if none is set. @param {Record<string, any>} fields */
export function query(fields) {
  const q = new URLSearchParams(Object.entries(fields).filter(([, v]) => v !== "" && v !== undefined));
  const text = q.toString();
  return text ? "?" + text : "";
}

/** The clusters that the gateway serves. @returns {Promise<any>} */
export async function clusters() {
  const r = await fetch("../clusters", { headers: headers({}), signal: signals.timeout(10000) });
  if (!r.ok) throw await failure(r);
  return r.json();
}

/**
 * Exchanges the one-time code of a link for a session, which is in a cookie from then on.
 * @param {string} code @returns {Promise<{user: string, cluster: string}>}
 */
export async function openLink(code) {
  const r = await fetch("../auth/link", {
    method: "POST", signal: signals.timeout(25000),
    headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }),
  });
  if (!r.ok) throw await failure(r);
  return r.json();
}

/**
 * How people can sign in at this gateway (login: at an issuer, link: with a link of persysctl), and who is signed in.
 * Scripts cannot see the session itself: it is in a cookie that only the browser reads.
 * @returns {Promise<{login?: boolean, link?: boolean, user?: string}>}
 */
export async function currentSession() {
  const r = await fetch("../auth/session", { signal: signals.timeout(10000) });
  if (!r.ok) throw await failure(r);
  return r.json();
}

/** Ends the session in this browser. */
export async function endSession() {
  const r = await fetch("../auth/logout", { method: "POST", signal: signals.timeout(10000) });
  if (!r.ok) throw await failure(r);
}

// A gateway sends a comment every 15 seconds. A stream without a byte for this long, in ms, is dead.
const silence = 45000;

/** Resolves after ms, or when signal aborts. @param {number} ms @param {AbortSignal} signal */
const sleep = (ms, signal) => /** @type {Promise<void>} */(new Promise((done) => {
  const t = setTimeout(done, ms);
  signal.addEventListener("abort", () => {
    clearTimeout(t);
    done();
  }, { once: true });
}));

/** @typedef {{once?: boolean, strict?: boolean, onState?: (why: string) => void}} StreamOptions */

/**
 * Reads server-sent events until signal aborts, and reconnects after an error.
 * @param {string | (() => string)} path a function is asked again at each reconnect
 * @param {(message: any) => void} onMessage @param {AbortSignal} signal
 * @param {StreamOptions} options once: return when the server ends the stream; strict: throw
 * in place of reconnecting; onState: called with "" when the stream is open and with the error when it breaks
 */
export async function stream(path, onMessage, signal, { once = false, strict = false, onState = () => { } } = {}) {
  let last = "";
  for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 15000)) {
    const dead = new AbortController();
    let alarm = 0;
    const heard = () => {
      clearTimeout(alarm);
      alarm = setTimeout(() => dead.abort(), silence);
    };
    try {
      heard();
      /** @type {Record<string, string>} */
      const extra = { Accept: "text/event-stream" };
      if (last) extra["Last-Event-ID"] = last;
      const r = await fetch("../v1" + (typeof path === "function" ? path() : path), {
        signal: signals.any([signal, dead.signal]), headers: headers(extra),
      });
      if (!r.ok || !r.body) throw await failure(r);
      onState("");
      const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (; ;) {
        const { value, done } = await reader.read();
        heard();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop() || "";
        for (const part of parts) {
          let data = "", name = "message";
          for (const line of part.split("\n")) {
            if (line.startsWith("data: ")) data += line.slice(6);
            else if (line.startsWith("id: ")) last = line.slice(4);
            else if (line.startsWith("event: ")) name = line.slice(7);
          }
          if (!data) continue;
          const message = JSON.parse(data);
          if (name === "error") throw new Failure(0, message.code || "", message.message || "the stream failed");
          pause = 500;
          onMessage(message);
        }
      }
      if (once) return;
    } catch (/** @type {any} */ e) {
      if (signal.aborted) return;
      onState(dead.signal.aborted ? "the gateway has sent nothing for 45 seconds" : e.message);
      if (strict || once && e.status >= 400 && e.status < 500) throw e;
    } finally {
      clearTimeout(alarm);
    }
    await sleep(pause, signal);
  }
}

/**
 * Reads a stream that the server ends into a list. strict: throw at the first error, for pages that read
 * again by themselves.
 * @param {string} path @param {AbortSignal} signal @param {{strict?: boolean}} options
 * @returns {Promise<any[]>}
 */
export async function fetchLines(path, signal, { strict = false } = {}) {
  /** @type {any[]} */
  const out = [];
  await stream(path, (e) => out.push(e), signal, { once: true, strict });
  signal.throwIfAborted(); // the page was left, and the list is incomplete
  return out;
}
