// The way to the gateway: calls, streams, and what is known about how fresh the
// answers are.

const store = window.sessionStorage;
export const session = {
  get cluster() { return store.getItem("cluster") || ""; },
  set cluster(id) { store.setItem("cluster", id); },
  get token() { return store.getItem("token") || ""; },
  set token(t) { if (t) store.setItem("token", t); else store.removeItem("token"); },
};

// freshness of what the last answers said; failing holds why looks at what the page shows
// went wrong, each until it goes through.
export const fresh = { at: 0, stale: false, ageMs: 0, error: "", failing: new Map() };
const watchers = new Set();
export const onFresh = (f) => watchers.add(f);
const tell = () => watchers.forEach((f) => f());

export class Failure extends Error {
  constructor(status, code, message, reason = "") { super(message); this.status = status; this.code = code; this.reason = reason; }
}

// unsure: what failed so may have been carried out all the same.
export const unsure = (e) => e.reason === "UNKNOWN_OUTCOME" || e.code === "DEADLINE_EXCEEDED" || (!e.code && !(e.status >= 400 && e.status < 500)) || !e.status;

// passing: the same may go through a moment later.
export const passing = (e) => !e.status || e.status === 429 || e.status >= 500;

function headers(extra) {
  const out = { ...extra };
  if (session.token) out.Authorization = "Bearer " + session.token;
  if (session.cluster) out["X-Persys-Cluster-ID"] = session.cluster;
  return out;
}

// requestId is a UUIDv7: its time orders receipts, and a repetition is answered
// once.
export function requestId() {
  const b = crypto.getRandomValues(new Uint8Array(16));
  let ms = Date.now();
  for (let i = 5; i >= 0; i--) { b[i] = ms % 256; ms = Math.floor(ms / 256); }
  b[6] = 0x70 | (b[6] & 0x0f);
  b[8] = 0x80 | (b[8] & 0x3f);
  const x = [...b].map((v) => v.toString(16).padStart(2, "0")).join("");
  return `${x.slice(0, 8)}-${x.slice(8, 12)}-${x.slice(12, 16)}-${x.slice(16, 20)}-${x.slice(20)}`;
}

async function failure(r) {
  let body = {};
  try { body = await r.json(); } catch { /* not ours: the status has to do */ }
  return new Failure(r.status, body.code || "", body.error || `the gateway answered ${r.status}`, body.reason);
}

export async function call(method, path, body, signal) {
  const timeout = AbortSignal.timeout(25000);
  let r;
  try {
    r = await fetch("../v1" + path, {
      method, signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
      headers: headers({ Accept: "application/json", ...(body && { "Content-Type": "application/json" }), ...(method !== "GET" && { "Idempotency-Key": requestId() }) }),
      body: body && JSON.stringify(body),
    });
  } catch (e) {
    if (signal?.aborted) throw e;
    fresh.error = "the gateway does not answer";
    tell();
    throw new Failure(0, "UNREACHABLE", "The gateway does not answer; is it running, and is this machine connected?");
  }
  if (!r.ok) {
    const f = await failure(r);
    if (passing(f)) { fresh.error = f.message; tell(); }
    throw f;
  }
  const out = await r.json();
  if (fresh.failing.size === 0) fresh.at = Date.now();
  fresh.error = "";
  // A replica's own status, and what a change answers, never say how old they are.
  if (method === "GET" && path !== "/status") {
    fresh.stale = r.headers.get("X-Persys-Stale") === "true" || out.stale === true;
    fresh.ageMs = Number(r.headers.get("X-Persys-Age-Ms") || out.age_ms || 0);
  }
  tell();
  return out;
}

export const get = (path, signal) => call("GET", path, undefined, signal);
export const post = (path, body) => call("POST", path, body || {});
export const del = (path) => call("DELETE", path);

export const query = (fields) => {
  const q = new URLSearchParams(Object.entries(fields).filter(([, v]) => v !== "" && v !== undefined));
  const text = q.toString();
  return text ? "?" + text : "";
};

// clusters that the gateway serves; one that is too old to say has one.
export async function clusters() {
  const r = await fetch("../clusters", { headers: headers({}), signal: AbortSignal.timeout(10000) });
  if (!r.ok) throw await failure(r);
  return r.json();
}

// A gateway says every 15 seconds that a stream lives; who hears nothing for so long
// listens to a connection that is dead.
const silence = 45000;

// stream reads server-sent events until signal aborts, coming back by itself; path
// says where from, which may change with what was read. With once it ends when the
// server ends it, with strict also when it fails.
export async function stream(path, onMessage, signal, { once = false, strict = false, onState = () => {} } = {}) {
  let last = "";
  for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 15000)) {
    const dead = new AbortController();
    let alarm = 0;
    const heard = () => { clearTimeout(alarm); alarm = setTimeout(() => dead.abort(), silence); };
    try {
      heard();
      const r = await fetch("../v1" + (typeof path === "function" ? path() : path), { signal: AbortSignal.any([signal, dead.signal]), headers: headers({ Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) }) });
      if (!r.ok) throw await failure(r);
      onState("");
      const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        heard();
        if (done) break;
        rest += value;
        const parts = rest.split("\n\n");
        rest = parts.pop();
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
    } catch (e) {
      if (signal.aborted) return;
      onState(dead.signal.aborted ? "the gateway has fallen silent" : e.message);
      if (strict || once && e.status >= 400 && e.status < 500) throw e;
    } finally {
      clearTimeout(alarm);
    }
    await new Promise((done) => {
      const t = setTimeout(done, pause);
      signal.addEventListener("abort", () => { clearTimeout(t); done(); }, { once: true });
    });
  }
}

// fetchLines reads a stream that the server ends; a page that is read again by itself
// is strict, and does not wait here for the gateway to come back.
export async function fetchLines(path, signal, { strict = false } = {}) {
  const out = [];
  await stream(path, (e) => out.push(e), signal, { once: true, strict });
  signal.throwIfAborted(); // the page was left, and these are not all
  return out;
}
