// The frame: pages by address, who is asked, how fresh everything is.
import { clusters, fresh, get, onFresh, passing, session, stream } from "./api.js";
import { h, replace, toast } from "./dom.js";
import { overview } from "./overview.js";
import { node, nodes } from "./nodes.js";
import { workload } from "./workload.js";
import { workloads } from "./workloads.js";
import { deploy } from "./deploy.js";
import { drifts } from "./drifts.js";
import { audit, events } from "./events.js";

const pages = [
  { name: "Overview", at: /^\/$/, href: "#/", show: overview },
  { name: "Nodes", at: /^\/nodes$/, href: "#/nodes", show: nodes },
  { at: /^\/nodes\/([^/]+)$/, parent: "Nodes", show: node },
  { name: "Workloads", at: /^\/workloads$/, href: "#/workloads", show: workloads },
  { at: /^\/workloads\/([^/]+)$/, parent: "Workloads", show: workload },
  { name: "Deploy", at: /^\/deploy$/, href: "#/deploy", show: deploy },
  { name: "Drifts", at: /^\/drifts$/, href: "#/drifts", show: drifts },
  { name: "Events", at: /^\/events$/, href: "#/events", show: events },
  { name: "Audit", at: /^\/audit$/, href: "#/audit", show: audit },
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
let leave = new AbortController();

// live tells pages that something has happened; it is one stream for all of them.
const listeners = new Set();
export function live(fn, signal) {
  listeners.add(fn);
  signal.addEventListener("abort", () => listeners.delete(fn));
}

// refresh calls load now, after what happens in the cluster (at most once per
// second), and every period while nothing does. A page is shown by load alone.
export function refresh(load, signal, { every = 5000, about = () => true } = {}) {
  let timer, running = false, again = false, soon = false, last = 0;
  const run = async () => {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (running) { again = true; return; }
    running = true;
    soon = false;
    try { await load(); settled(run); } catch (e) { if (!signal.aborted) problem(e, run); }
    running = false;
    last = Date.now();
    soon = again;
    if (!signal.aborted) timer = setTimeout(run, again ? 1000 : document.hidden ? every * 6 : every);
    again = false;
  };
  live((e) => {
    if (!about(e) || soon) return; // a look that is near is put off by nothing
    if (running) { again = true; return; }
    soon = true;
    clearTimeout(timer);
    timer = setTimeout(run, Math.max(400, last + 1000 - Date.now()));
  }, signal);
  signal.addEventListener("abort", () => { clearTimeout(timer); fresh.failing.delete(run); });
  return run();
}

function settled(look) {
  if (fresh.failing.delete(look) && fresh.failing.size === 0) { fresh.at = Date.now(); sayFresh(); }
}

function problem(e, look) {
  if (e.status === 401) { askToken(e.message); return; }
  // What may pass is said by the banner, once; what the page shows stays, and is read again.
  if (passing(e)) {
    fresh.failing.set(look, e.message);
    sayFresh();
    if (!main.querySelector("h1")) replace(main, h("p", { class: "err" }, e.message));
    return;
  }
  settled(look);
  replace(main, h("h1", {}, e.status === 404 ? "Not found" : "This did not work"), h("p", { class: "err" }, e.message), h("p", {}, h("a", { href: "#/" }, "Back to the overview")));
}

function route() {
  leave.abort();
  fresh.failing.delete(route);
  leave = new AbortController();
  const { signal } = leave;
  const path = location.hash.slice(1).split("?")[0] || "/";
  const page = pages.find((p) => p.at.test(path));
  replace(nav, pages.filter((p) => p.name).map((p) => h("a", { href: p.href, "aria-current": page && (p === page || p.name === page.parent) ? "page" : undefined }, p.name)));
  if (!page) { replace(main, h("h1", {}, "Not found"), h("p", {}, "There is no such page. ", h("a", { href: "#/" }, "Overview"))); return; }
  replace(main, h("p", { class: "quiet" }, "Reading the cluster …"));
  const [, id] = path.match(page.at);
  document.title = [id && decodeURIComponent(id), page.name || page.parent, "Persys Compute"].filter(Boolean).join(" · ");
  Promise.resolve(page.show(main, signal, id && decodeURIComponent(id))).catch((e) => { if (!signal.aborted) problem(e, route); });
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

// What a page asked for and no longer wants is no fault; everything else is shown.
addEventListener("unhandledrejection", (e) => {
  if (e.reason?.name === "AbortError") e.preventDefault();
  else if (e.reason?.message) { e.preventDefault(); toast(e.reason.message, true); }
});

// The banner says what makes this page less than the truth.
let mode = { mode: "", reason: "" };
const banner = document.getElementById("banner");
const pulse = document.getElementById("pulse");
function sayFresh() {
  const lines = [];
  const since = fresh.at ? Math.round((Date.now() - fresh.at) / 1000) : 0;
  const [failing] = fresh.failing.values(), wrong = fresh.error || failing;
  if (wrong) lines.push(h("div", { class: "bad" }, wrong.replace(/[^.?!]$/, "$&.") + " " + (fresh.at ? `What you see is ${since} s old.` : "")));
  else if (fresh.stale) lines.push(h("div", { class: "bad" }, `There is no leader: what you see is what one replica knew ${Math.round(fresh.ageMs / 1000)} s ago, and changes are refused until a majority is back.`));
  if (mode.mode && mode.mode !== "normal") lines.push(h("div", {}, `The cluster is in mode ${mode.mode}: ${mode.reason || "no reason given"}. Changes are refused; what runs goes on. persysctl mode show tells more.`));
  if (banner.textContent !== lines.map((l) => l.textContent).join("")) replace(banner, lines);
  pulse.className = "pulse" + (fresh.error ? " lost" : fresh.stale || failing || since > 20 ? " late" : "");
  pulse.textContent = fresh.error ? "no contact" : fresh.stale ? "stale" : !fresh.at ? "" : failing || since > 20 ? `${since} s old` : "live";
}
onFresh(sayFresh);
setInterval(sayFresh, 1000);

const signIn = document.getElementById("sign-in");
async function askToken(why) {
  signIn.hidden = false;
  if (document.querySelector("dialog")) return;
  const input = h("input", { type: "password", id: "token", autocomplete: "off", style: { width: "100%" } });
  const d = h("dialog", { "aria-labelledby": "token-title" }, h("form", { method: "dialog" },
    h("h2", { id: "token-title" }, "Who are you?"), h("p", {}, why),
    h("label", { for: "token" }, "Bearer token of your identity provider"), input,
    h("p", { class: "quiet" }, "It is kept in this tab only. A client certificate installed in the browser needs none."),
    h("div", { class: "actions" }, h("button", { value: "no" }, "Cancel"), h("button", { class: "main", value: "yes" }, "Use it"))));
  d.addEventListener("close", () => { d.remove(); if (d.returnValue === "yes") { session.token = input.value.trim(); start(); } });
  document.body.append(d);
  d.showModal();
}
signIn.addEventListener("click", () => askToken("Paste another token, or an empty one to sign out."));

const theme = document.getElementById("theme");
const setTheme = (t) => { if (t) document.documentElement.dataset.theme = t; else delete document.documentElement.dataset.theme; };
setTheme(localStorage.getItem("theme"));
theme.addEventListener("click", () => {
  const dark = (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  localStorage.setItem("theme", dark ? "light" : "dark");
  setTheme(dark ? "light" : "dark");
});

// g and a letter goes to a page, / to the search.
let chord = 0;
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, select, dialog")) return;
  if (e.key === "g") { chord = Date.now(); return; }
  const to = { o: "#/", n: "#/nodes", w: "#/workloads", d: "#/deploy", r: "#/drifts", e: "#/events", a: "#/audit" }[e.key];
  if (to && Date.now() - chord < 1500) { location.hash = to; chord = 0; e.preventDefault(); }
  if (e.key === "/") { document.querySelector("input[type=search]")?.focus(); e.preventDefault(); }
});

async function pickCluster() {
  const box = document.getElementById("cluster-box"), select = document.getElementById("cluster");
  const list = await clusters();
  const ids = list.clusters.map((c) => c.id);
  if (!ids.includes(session.cluster)) session.cluster = list.default_cluster_id;
  box.hidden = ids.length < 2;
  replace(select, list.clusters.map((c) => h("option", { value: c.id, selected: c.id === session.cluster }, c.name || c.id)));
  select.onchange = () => { session.cluster = select.value; start(); };
}

let running = new AbortController();
async function start() {
  running.abort();
  running = new AbortController();
  try { await pickCluster(); } catch (e) { if (e.status === 401) { askToken(e.message); return; } toast(e.message, true); }
  stream("/events?follow=true&tail=1", (e) => listeners.forEach((fn) => fn(e)), running.signal);
  // On every page, also those that ask for nothing by themselves.
  refresh(async () => {
    try {
      const s = await get("/status", running.signal);
      mode = { mode: s.mode, reason: s.mode_reason };
      sayFresh();
    } catch (e) { if (e.status === 401) throw e; } // the rest is the banner's
  }, running.signal, { every: 10000, about: (e) => e.type === "ModeChanged" });
  route();
}
addEventListener("hashchange", route);
start();
