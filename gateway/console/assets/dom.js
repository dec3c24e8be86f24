// @ts-check
// Functions that make the HTML elements of every page. They set text only as text, never as HTML.

/** @typedef {any} Child A node, a text, a list of them, or undefined, null or false for nothing. */

/** @param {Child[]} children @returns {(Node | string)[]} */
const flat = (children) => children.flat(Infinity).filter((c) => c !== undefined && c !== null && c !== false);

/**
 * Makes an element: h("a", {href, class, onclick, ...}, children...). An attribute that is
 * undefined, null or false is left out.
 * @param {string} tag @param {Record<string, any>} attributes @param {...Child} children
 * @returns {any} the element
 */
export function h(tag, attributes, ...children) {
  /** @type {any} */
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(el.style, value);
    else if (name in el && name !== "list" && typeof value !== "string") el[name] = value;
    else el.setAttribute(name, value === true ? "" : value);
  }
  el.append(...flat(children));
  return el;
}

/** @param {string} id @returns {any} the element of index.html with that id */
export const byId = (id) => document.getElementById(id);

// focusName identifies an element across a redraw: its id, link target or text, and the row it is in.
const focusName = (e) => {
  const own = e.id || e.getAttribute("href");
  const text = e.matches("button, summary") ? e.textContent : e.getAttribute("aria-label");
  return [own || text, e.closest("tr, .row")?.firstElementChild.textContent].join("\n");
};

/**
 * Replaces the children of el. If the element that has the focus is replaced, its successor of
 * the same focusName gets the focus.
 * @param {Element} el @param {...Child} children
 */
export function replace(el, ...children) {
  const active = document.activeElement;
  const held = active && el !== active && el.contains(active) ? active : null;
  el.replaceChildren(...flat(children));
  if (!held || held.isConnected) return;
  /** @type {any[]} */
  const candidates = [...el.querySelectorAll(held.tagName)];
  candidates.find((e) => focusName(e) === focusName(held))?.focus({ preventScroll: true });
}

/** @param {string} title "" for none @param {...Child} children */
export const card = (title, ...children) => h("section", { class: "card" }, title && h("h2", {}, title), children);

/**
 * A table, or the text `empty` when there are no rows.
 * @param {(string | {title: string, num?: boolean})[]} columns num aligns to the right
 * @param {Child[][]} rows @param {string} empty
 * @param {boolean} [stack] on a phone, show each row as a block with the first cell as its title
 */
export function table(columns, rows, empty, stack) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  const cols = columns.map((c) => (typeof c === "string" ? { title: c } : c));
  const cls = (c) => (c.num ? "num" : undefined);
  const label = cols.map((c) => c.title).join(", ");
  const cell = (c, i) => h("td", { class: cls(cols[i]), "data-title": stack && cols[i].title }, c);
  return h("div", { class: stack ? "scroll stack" : "scroll", tabIndex: 0, role: "region", "aria-label": label },
    h("table", {},
      h("thead", {}, h("tr", {}, cols.map((c) => h("th", { scope: "col", class: cls(c) }, c.title)))),
      h("tbody", {}, rows.map((r) => h("tr", {}, r.map(cell))))));
}

/** A list of names and values. A pair without a value is left out. @param {[string, Child][]} pairs */
export function facts(pairs) {
  const given = pairs.filter(([, v]) => v !== undefined && v !== null && v !== "" && v !== false);
  return h("dl", { class: "facts" }, given.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]));
}

// short drops the unit of an amount if the next amount has the same unit: "0.3 of 1.6 cores".
const short = (amount, next) => {
  const [number, unit] = amount.split(" ");
  return next.endsWith(" " + unit) ? number : amount;
};

/**
 * A labelled bar of used against total.
 * @param {string} label @param {number} used @param {number} total @param {(n: number) => string} unit
 */
export function meter(label, used, total, unit) {
  const share = total > 0 ? used / total : 0;
  const text = total > 0 ? `${short(unit(used), unit(total))} of ${unit(total)}` : unit(used);
  const fill = share > 0.95 ? "full" : share > 0.8 ? "tight" : "";
  return h("div", { class: "meter" },
    h("div", {}, h("span", {}, label), h("span", { class: "quiet" }, text)),
    total > 0 && h("div", { class: "bar", role: "img", "aria-label": `${label}: ${text}, ${Math.round(share * 100)} %` },
      h("i", { class: fill, style: { width: Math.min(100, share * 100) + "%" } })));
}

/** @type {Record<string, string>} */
const styles = {};
for (const [style, words] of Object.entries({
  good: "Running Ready normal leader voter alive create start Success Succeeded",
  warn: "Pending Scheduled Updating RetryPending Draining Deleting degraded Unknown suspect non-voter replace update stop",
  bad: "Failed NotReady recovery dead absent refused delete",
})) for (const word of words.split(" ")) styles[word] = style;

/** The CSS class of a state: good, warn, bad or "". @param {string} word */
export const stateClass = (word) => styles[word] || "";

/**
 * A state with a mark. The mark's shape also tells good from bad, so colour is not needed.
 * @param {string} word decides the mark @param {string} [text] shown in place of the word
 */
export const state = (word, text) => h("span", { class: "state " + stateClass(word) }, text || word || "unknown");

const decimal = (n) => n.toLocaleString("en", { maximumFractionDigits: 1 });

/** @param {number} millicores */
export const cores = (millicores) => decimal(millicores / 1000) + " cores";
/** @param {number} n MiB */
export const mib = (n) => (n >= 10240 ? decimal(n / 1024) + " GiB" : n.toLocaleString("en") + " MiB");
/** @param {number} n GB */
export const gb = (n) => n.toLocaleString("en") + " GB";
/** Reads a number of the API; 64-bit integers are text in JSON. @param {any} v */
export const int = (v) => Number(v || 0);

/** A time span in its largest unit. @param {number} ms */
function span(ms) {
  const s = Math.max(0, ms / 1000);
  if (s < 90) return Math.round(s) + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  if (s < 129600) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
}
/** How long ago a time was. @param {string} [time] RFC 3339 */
export const age = (time) => (time ? span(Date.now() - Date.parse(time)) : "–");
/** How long it is until a time. @param {string} time RFC 3339 */
export const until = (time) => "in " + span(Date.parse(time) - Date.now());

/** Date and time. @param {string} [time] RFC 3339 @param {string} [timeZone] default is the reader's */
export function clock(time, timeZone) {
  if (!time) return "–";
  /** @type {Intl.DateTimeFormatOptions} */
  const form = { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone };
  return h("time", { datetime: time, title: time }, new Date(time).toLocaleString("en-GB", form));
}

/**
 * The time in an event's text, given in seconds or nanoseconds since 1970; undefined if the text is no such time.
 * @param {string} text
 */
function moment(text) {
  if (!/^\d{10}(\d{9})?$/.test(text)) return undefined;
  return clock(new Date(Number(text.slice(0, 13).padEnd(13, "0"))).toISOString());
}

/** Labels as sorted K=V texts. @param {Record<string, string>} [labels] */
export const labelTexts = (labels) => Object.entries(labels || {}).sort().map(([k, v]) => `${k}=${v}`);

/** Code and message of a reason in one text. @param {...(string | undefined)} parts */
export const reasonText = (...parts) => parts.filter(Boolean).join(": ");

/** @param {string} id @param {string} [tab] tab of the workload's page @param {string} [text] */
export function workloadLink(id, tab, text) {
  const href = "#/workloads/" + encodeURIComponent(id) + (tab ? "?tab=" + tab : "");
  return h("a", { href, class: "id", title: id }, text || id);
}
/** @param {string} name */
export const groupLink = (name) => name
  && h("a", { href: "#/groups/" + encodeURIComponent(name), class: "id", title: name }, name);
/** @param {string} [id] */
export function nodeLink(id) {
  if (!id) return h("span", { class: "quiet" }, "none");
  return h("a", { href: "#/nodes/" + encodeURIComponent(id), class: "id", title: id }, id);
}

/** Shows a short message for 5 seconds, an error for 12. @param {string} text @param {boolean} [bad] */
export function toast(text, bad) {
  const el = h("div", { class: bad ? "bad" : "" }, text), box = byId("toasts");
  while (box.childElementCount > 2) box.firstElementChild.remove();
  box.append(el);
  setTimeout(() => el.remove(), bad ? 12000 : 5000);
}

/**
 * Shows a dialog with a Cancel button and one further button.
 * @param {string} title @param {Child} body @param {string} verb text of the other button @param {boolean} [danger]
 * @returns {Promise<boolean>} whether the other button was pressed
 */
export function confirmed(title, body, verb, danger) {
  return new Promise((resolve) => {
    const d = h("dialog", { "aria-labelledby": "dialog-title" },
      h("form", { method: "dialog" },
        h("h2", { id: "dialog-title" }, title),
        h("div", {}, body),
        h("div", { class: "actions" },
          h("button", { value: "no" }, "Cancel"),
          h("button", { value: "yes", class: danger ? "danger" : "main" }, verb))));
    d.addEventListener("close", () => {
      d.remove();
      resolve(d.returnValue === "yes");
    });
    document.body.append(d);
    d.showModal();
  });
}

/** What a planned delete does to data. @param {any} w @returns {string[]} */
export function dataLines(w) {
  const parts = [["deletes", w.deleted_data || []], ["keeps", w.kept_data || []]];
  return parts.filter(([, data]) => data.length).map(([verb, data]) => `${w.workload_id} ${verb} ${data.join(", ")}`);
}

/** Events as a list, in the order given. @param {any[]} list @param {string} [empty] */
export function timeline(list, empty) {
  if (list.length === 0) return h("p", { class: "empty" }, empty || "Nothing has been recorded.");
  const details = (e) => Object.entries(e.details || {}).sort().filter(([k]) => k !== "task_id")
    .map(([k, v]) => h("span", { class: "quiet" }, ` ${k.replaceAll("_", " ")} `, k.endsWith("_at") && moment(v) || v));
  return h("ol", { class: "timeline" }, list.map((e) => h("li", {}, clock(e.at), h("div", {},
    h("strong", {}, e.type), " ",
    e.workload_id && [workloadLink(e.workload_id), " "],
    e.node_id && ["on ", nodeLink(e.node_id), " "],
    reasonText(e.reason, e.message),
    details(e),
    e.by && h("span", { class: "quiet" }, " by " + e.by)))));
}
