// @ts-check
// Keeps pages current: the cluster's events for every page, and reading a page again after them.
import { fresh, freshChanged, passing } from "./api.js";
import { byId, h, replace } from "./dom.js";

/** @type {Set<(event: any) => void>} */
const listeners = new Set();

/** Calls fn for each event of the cluster until signal aborts. @param {(event: any) => void} fn @param {AbortSignal} signal */
export function live(fn, signal) {
  listeners.add(fn);
  signal.addEventListener("abort", () => listeners.delete(fn));
}

/** Passes an event to every listener. @param {any} event */
export const publish = (event) => listeners.forEach((fn) => fn(event));

/** @type {(why: string) => void} */
let askToken = () => { };
/** Sets the function to call when the gateway answers 401. @param {(why: string) => void} fn */
export const onUnauthorized = (fn) => { askToken = fn; };

/**
 * Calls load now, then every `every` ms and after each event for which about returns true, at most once per second.
 * @param {() => Promise<void>} load @param {AbortSignal} signal
 * @param {{every?: number, about?: (event: any) => any}} options
 */
export function refresh(load, signal, { every = 5000, about = () => true } = {}) {
  let timer = 0, running = false, again = false, soon = false, last = 0;
  const run = async () => {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (running) {
      again = true;
      return;
    }
    running = true;
    soon = false;
    try {
      await load();
      settled(run);
    } catch (e) {
      if (!signal.aborted) problem(e, run);
    }
    running = false;
    last = Date.now();
    soon = again;
    if (!signal.aborted) timer = setTimeout(run, again ? 1000 : document.hidden ? every * 6 : every);
    again = false;
  };
  live((e) => {
    if (!about(e) || soon) return; // a further event does not delay a reload that is already scheduled
    if (running) {
      again = true;
      return;
    }
    soon = true;
    clearTimeout(timer);
    timer = setTimeout(run, Math.max(400, last + 1000 - Date.now()));
  }, signal);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    fresh.failing.delete(run);
  });
  return run();
}

/** @param {Function} look the load that succeeded */
function settled(look) {
  if (!fresh.failing.delete(look) || fresh.failing.size > 0) return;
  fresh.at = Date.now();
  freshChanged();
}

/**
 * Shows an error. If a repeated request may succeed, the banner shows the error and the page keeps its content.
 * @param {any} e @param {Function} look the load that failed
 */
export function problem(e, look) {
  if (e.status === 401) {
    askToken(e.message);
    return;
  }
  const main = byId("main");
  if (passing(e)) {
    fresh.failing.set(look, e.message);
    freshChanged();
    if (!main.querySelector("h1")) replace(main, h("p", { class: "err" }, e.message));
    return;
  }
  settled(look);
  replace(main, h("h1", {}, e.status === 404 ? "Not found" : "This did not work"),
    h("p", { class: "err" }, e.message), h("p", {}, h("a", { href: "#/" }, "Back to the overview")));
}
