// @ts-check
// The frame around the pages: routing, banner, sign-in, token dialog, theme, keyboard shortcuts, selected cluster.
import { clusters, currentSession, endSession, fresh, get, onFresh, openLink, session, stream } from "./api.js";
import { byId, clock, confirmed, facts, h, replace, table, toast } from "./dom.js";
import { onUnauthorized, problem, publish, refresh } from "./live.js";
import { overview } from "./overview.js";
import { node, nodes } from "./nodes.js";
import { workload } from "./workload.js";
import { workloads } from "./workloads.js";
import { group } from "./group.js";
import { deploy } from "./deploy.js";
import { drifts } from "./drifts.js";
import { audit, events } from "./events.js";

// shared returns the function of cluster.js that shows a page.
/** @param {"namespaces" | "networks" | "secrets" | "volumes" | "policies"} name */
function shared(name) {
  return async (/** @type {HTMLElement} */ main, /** @type {AbortSignal} */ signal) => {
    const pages = await import("./cluster.js");
    if (!signal.aborted) await pages[name](main, signal);
  };
}

const pages = [
  { name: "Overview", at: /^\/$/, href: "#/", show: overview },
  { name: "Nodes", at: /^\/nodes$/, href: "#/nodes", show: nodes },
  { at: /^\/nodes\/([^/]+)$/, parent: "Nodes", show: node },
  { name: "Workloads", at: /^\/workloads$/, href: "#/workloads", show: workloads },
  { at: /^\/workloads\/([^/]+)$/, parent: "Workloads", show: workload },
  { at: /^\/groups\/([^/]+)$/, parent: "Workloads", show: group },
  { name: "Deploy", at: /^\/deploy$/, href: "#/deploy", show: deploy },
  { name: "Networks", at: /^\/networks$/, href: "#/networks", show: shared("networks") },
  { name: "Secrets", at: /^\/secrets$/, href: "#/secrets", show: shared("secrets") },
  { name: "Volumes", at: /^\/volumes$/, href: "#/volumes", show: shared("volumes") },
  { name: "Namespaces", at: /^\/namespaces$/, href: "#/namespaces", show: shared("namespaces") },
  { name: "Policies", at: /^\/policies$/, href: "#/policies", show: shared("policies") },
  { name: "Drifts", at: /^\/drifts$/, href: "#/drifts", show: drifts },
  { name: "Events", at: /^\/events$/, href: "#/events", show: events },
  { name: "Audit", at: /^\/audit$/, href: "#/audit", show: audit },
];

const main = byId("main");
let leave = new AbortController();

// route shows the page of the address.
function route() {
  leave.abort();
  fresh.failing.delete(route);
  leave = new AbortController();
  const { signal } = leave;
  const path = location.hash.slice(1).split("?")[0] || "/";
  const page = pages.find((p) => p.at.test(path));
  const current = (p) => (page && (p === page || p.name === page.parent) ? "page" : undefined);
  replace(byId("nav"), pages.filter((p) => p.name).map((p) => h("a", { href: p.href, "aria-current": current(p) }, p.name)));
  byId("nav").querySelector("[aria-current]")?.scrollIntoView({ inline: "nearest", block: "nearest" });
  if (!page) {
    replace(main, h("h1", {}, "Not found"), h("p", {}, "There is no such page. ", h("a", { href: "#/" }, "Overview")));
    return;
  }
  replace(main, h("p", { class: "quiet" }, "Reading the cluster …"));
  const id = decodeURIComponent(page.at.exec(path)?.[1] || "");
  document.title = [id, page.name || page.parent, "Persys Compute"].filter(Boolean).join(" · ");
  Promise.resolve(page.show(main, signal, id)).catch((e) => { if (!signal.aborted) problem(e, route); });
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

// Leaving a page aborts its requests, and an aborted request is no error. Every other failed promise is shown.
addEventListener("unhandledrejection", (e) => {
  if (e.reason?.name === "AbortError") e.preventDefault();
  else if (e.reason?.message) {
    e.preventDefault();
    toast(e.reason.message, true);
  }
});

// The banner says that the gateway does not answer, that data is old, or that the mode refuses changes.
let mode = { mode: "", reason: "" };
const banner = byId("banner"), pulse = byId("pulse");
function showFreshness() {
  /** @type {HTMLElement[]} */
  const lines = [];
  const since = fresh.at ? Math.round((Date.now() - fresh.at) / 1000) : 0;
  const [failing] = fresh.failing.values(), wrong = fresh.error || failing;
  if (wrong) {
    const seen = fresh.at ? `What you see is ${since} s old.` : "";
    lines.push(h("div", { class: "bad" }, wrong.replace(/[^.?!]$/, "$&.") + " " + seen));
  } else if (fresh.stale) {
    lines.push(h("div", { class: "bad" }, "There is no leader: what you see is what one replica knew "
      + `${Math.round(fresh.ageMs / 1000)} s ago, and changes are refused until a majority is back.`));
  }
  if (mode.mode && mode.mode !== "normal") {
    lines.push(h("div", {}, `The cluster is in mode ${mode.mode}: ${mode.reason || "no reason given"}. `
      + "Changes are refused; running workloads are not touched. For details: persysctl mode show"));
  }
  if (banner.textContent !== lines.map((l) => l.textContent).join("")) replace(banner, lines);
  const late = failing || since > 20;
  pulse.className = "pulse" + (fresh.error ? " lost" : fresh.stale || late ? " late" : "");
  pulse.textContent = fresh.error ? "no contact" : fresh.stale ? "stale" : !fresh.at ? "" : late ? `${since} s old` : "live";
}
onFresh(showFreshness);
setInterval(showFreshness, 1000);

const tokenButton = byId("token-button"), signIn = byId("sign-in"), signOut = byId("sign-out"), me = byId("user");
/** @type {{login?: boolean, link?: boolean, user?: string}} */
let who = {};
async function readSession() {
  try {
    who = await currentSession();
  } catch (/** @type {any} */ e) {
    who = {};
    toast(e.message, true);
  }
  signOut.hidden = !who.user;
  signIn.hidden = true;
}

// nameOf returns the name of an identity as people read it.
function nameOf(/** @type {string} */ identity) {
  const certificate = /^persys:\/\/[^/]*\/user\/([^?]+)/.exec(identity);
  return certificate ? certificate[1] : identity.replace(/^oidc:.*#/, "");
}

/** @type {any} The caller's identity and roles, as the schedulers know them. */
let access;
async function readAccess(/** @type {AbortSignal} */ signal) {
  try {
    access = await get("/access", signal);
  } catch (/** @type {any} */ e) {
    if (e.status === 401) throw e;
    access = {}; // legacy v1 schedulers do not know the call
  }
  me.hidden = !access.identity && !who.user;
  me.textContent = who.user || nameOf(access.identity || "");
  me.title = "Who you are, and what you may do";
}

// The dialog "who am I": the caller's identity, and the roles with their permissions and namespaces.
me.addEventListener("click", () => {
  const where = (g) => (g.everywhere ? "every namespace" : (g.namespaces || []).join(", ") || "no namespace");
  const rows = (access.grants || []).map((g) => [g.role, where(g), (g.permissions || []).join(", ")]);
  const d = h("dialog", { "aria-labelledby": "me-title" }, h("form", { method: "dialog" },
    h("h2", { id: "me-title" }, me.textContent),
    facts([
      ["Identity", h("span", { class: "mono" }, access.identity)],
      ["Through", access.via && h("span", { class: "mono" }, access.via)],
      ["Certificate until", access.certificate_not_after && clock(access.certificate_not_after)],
      ["Session until", access.session_expires_at && clock(access.session_expires_at)],
    ]),
    table(["Role", "In", "Permissions"], rows, "You have no role. An admin binds one: persysctl role bind."),
    h("div", { class: "actions" }, h("button", { class: "main", value: "no" }, "Close"))));
  d.addEventListener("close", () => d.remove());
  document.body.append(d);
  d.showModal();
});

function logIn() {
  session.token = ""; // otherwise the pasted token would take precedence over the session cookie
  location.assign("../auth/login?next=" + encodeURIComponent("/ui/" + location.hash));
}
signIn.addEventListener("click", logIn);
signOut.addEventListener("click", async () => {
  await endSession();
  session.token = "";
  location.reload();
});

/** Shows how to sign in or to give a token, after the gateway refused a caller without a known identity. @param {string} why */
function strange(why) {
  running.abort();
  leave.abort();
  signIn.hidden = !who.login;
  me.hidden = signOut.hidden = true;
  replace(main, h("h1", {}, "You are not signed in"),
    who.link && h("p", {}, "Make a link to this console on a machine with your certificate. It opens a session of 12 hours:"),
    who.link && h("pre", {}, "persysctl console"),
    who.login && h("p", {}, (who.link ? "Or sign in" : "Sign in") + " at the identity provider of this cluster."),
    h("p", { class: "quiet" }, "The gateway says: " + why.replace(/[^.?!]$/, "$&.")),
    h("div", { class: "actions" },
      who.login && h("button", { class: "main", onclick: logIn }, "Sign in"),
      h("button", { onclick: () => askToken("Paste a token in place of signing in.") }, "Use a token …")));
}

// useLink opens a session if the address is a one-time link of persysctl console: #/link/CODE. It removes the code from
// the address and from the browser's history.
async function useLink() {
  const code = /^#\/link\/(.+)$/.exec(location.hash)?.[1];
  if (!code) return;
  history.replaceState(null, "", "#/");
  await readSession();
  const other = `You are signed in as ${who.user}. The link replaces that session in this browser `
    + "by one of the person who made the link.";
  if (who.user && !await confirmed("Use the link?", h("p", {}, other), "Use the link")) return;
  try {
    const got = await openLink(decodeURIComponent(code));
    session.token = "";
    session.cluster = got.cluster;
    toast(`You are signed in as ${got.user}.`);
  } catch (/** @type {any} */ e) {
    toast(e.message, true);
  }
}

/** @param {string} why */
function askToken(why) {
  tokenButton.hidden = false;
  if (document.querySelector("dialog")) return;
  const input = h("input", { type: "password", id: "token", autocomplete: "off", style: { width: "100%" } });
  const d = h("dialog", { "aria-labelledby": "token-title" }, h("form", { method: "dialog" },
    h("h2", { id: "token-title" }, "Who are you?"), h("p", {}, why),
    h("label", { for: "token" }, "Bearer token of your identity provider"), input,
    h("p", { class: "quiet" }, "It is kept in this tab only. A client certificate installed in the browser needs none."),
    h("div", { class: "actions" },
      h("button", { value: "no" }, "Cancel"), h("button", { class: "main", value: "yes" }, "Use it"))));
  d.addEventListener("close", () => {
    d.remove();
    if (d.returnValue !== "yes") return;
    session.token = input.value.trim();
    start();
  });
  document.body.append(d);
  d.showModal();
}
onUnauthorized(strange);
tokenButton.addEventListener("click", () => askToken("Paste another token, or an empty one to sign out."));

/** @param {string | null} theme light, dark, or null for the system's */
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
setTheme(localStorage.getItem("theme"));
byId("theme").addEventListener("click", () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const other = (document.documentElement.dataset.theme || system) === "dark" ? "light" : "dark";
  localStorage.setItem("theme", other);
  setTheme(other);
});

// Keyboard shortcuts: g and then a letter opens a page, / moves the focus to the search field.
/** @type {Record<string, string>} */
const shortcuts = { o: "#/", n: "#/nodes", w: "#/workloads", d: "#/deploy", r: "#/drifts", e: "#/events", a: "#/audit" };
let chord = 0;
document.addEventListener("keydown", (/** @type {any} */ e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, select, dialog")) return;
  if (e.key === "g") {
    chord = Date.now();
    return;
  }
  const to = shortcuts[e.key];
  if (to && Date.now() - chord < 1500) {
    location.hash = to;
    chord = 0;
    e.preventDefault();
  }
  if (e.key === "/") {
    /** @type {HTMLElement | null} */
    const search = document.querySelector("input[type=search]");
    search?.focus();
    e.preventDefault();
  }
});

async function pickCluster() {
  const select = byId("cluster");
  const list = await clusters();
  const ids = list.clusters.map((c) => c.id);
  if (!ids.includes(session.cluster)) session.cluster = list.default_cluster_id;
  byId("cluster-box").hidden = ids.length < 2;
  const option = (c) => h("option", { value: c.id, selected: c.id === session.cluster }, c.name || c.id);
  replace(select, list.clusters.map(option));
  select.onchange = () => {
    session.cluster = select.value;
    start();
  };
}

let running = new AbortController();
// start loads the console again, with the cluster and the token that the user has chosen.
async function start() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  await readSession();
  try {
    await pickCluster();
    await readAccess(signal);
  } catch (/** @type {any} */ e) {
    if (e.status === 401) {
      strange(e.message);
      return;
    }
    toast(e.message, true);
  }
  stream("/events?follow=true&tail=1", publish, signal);
  // The mode is read on every page, also on pages that make no requests of their own.
  refresh(async () => {
    try {
      const s = await get("/status", signal);
      mode = { mode: s.mode, reason: s.mode_reason };
      showFreshness();
    } catch (/** @type {any} */ e) {
      if (e.status === 401) throw e; // other errors of this request are shown in the banner
    }
  }, signal, { every: 10000, about: (e) => e.type === "ModeChanged" });
  route();
}
addEventListener("hashchange", async () => {
  if (!location.hash.startsWith("#/link/")) {
    route();
    return;
  }
  await useLink();
  start();
});
useLink().then(start);
