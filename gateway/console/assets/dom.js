// What pages are made of. Text is only ever set as text, never as HTML.

// h makes an element: h("a", {href, class, onclick, ...}, children...). Children
// are nodes, text, lists of them, or nothing.
export function h(tag, attributes, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(el.style, value);
    else if (name in el && name !== "list" && typeof value !== "string") el[name] = value;
    else el.setAttribute(name, value === true ? "" : value);
  }
  el.append(...children.flat(Infinity).filter((c) => c !== undefined && c !== null && c !== false));
  return el;
}

// replace gives el other children. What has the focus and is made anew keeps it: it is
// the same kind of thing with the same id, target or text, and in the same row.
export function replace(el, ...children) {
  const held = el !== document.activeElement && el.contains(document.activeElement) ? document.activeElement : null;
  const name = (e) => [e.id || e.getAttribute("href") || (e.matches("button, summary") ? e.textContent : e.getAttribute("aria-label")), e.closest("tr, .row")?.firstElementChild.textContent].join("\n");
  el.replaceChildren(...children.flat(Infinity).filter((c) => c !== undefined && c !== null && c !== false));
  if (held && !held.isConnected) [...el.querySelectorAll(held.tagName)].find((e) => name(e) === name(held))?.focus({ preventScroll: true });
}

export const card = (title, ...children) => h("section", { class: "card" }, title && h("h2", {}, title), children);

// table makes rows of cells; columns are titles, or {title, num}.
export function table(columns, rows, empty) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  const cls = (c) => (c.num ? "num" : undefined);
  return h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": columns.map((c) => c.title || c).join(", ") },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map((c) => h("th", { scope: "col", class: cls(c) }, c.title || c)))),
      h("tbody", {}, rows.map((r) => h("tr", {}, r.map((cell, i) => h("td", { class: cls(columns[i]) }, cell)))))));
}

export const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter(([, v]) => v !== undefined && v !== null && v !== "" && v !== false)
  .map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]));

// meter is a labelled bar of used against total.
export function meter(label, used, total, unit) {
  const share = total > 0 ? used / total : 0;
  const text = total > 0 ? `${unit(used)} of ${unit(total)}` : unit(used);
  return h("div", { class: "meter" }, h("div", {}, h("span", {}, label), h("span", { class: "quiet" }, text)),
    h("div", { class: "bar", role: "img", "aria-label": `${label}: ${text}, ${Math.round(share * 100)} %` },
      h("i", { class: share > 0.95 ? "full" : share > 0.8 ? "tight" : "", style: { width: Math.min(100, share * 100) + "%" } })));
}

const styles = {
  Running: "good", Ready: "good", normal: "good", leader: "good", voter: "good", alive: "good", create: "good", start: "good", Success: "good", Succeeded: "good",
  Pending: "warn", Scheduled: "warn", Updating: "warn", RetryPending: "warn", Draining: "warn", Deleting: "warn", degraded: "warn", Unknown: "warn",
  suspect: "warn", "non-voter": "warn", replace: "warn", update: "warn", stop: "warn",
  Failed: "bad", NotReady: "bad", recovery: "bad", dead: "bad", absent: "bad", refused: "bad", delete: "bad",
};

// state is a word with a mark whose shape tells it too, not only its colour.
export const state = (word, text) => h("span", { class: "state " + (styles[word] || "") }, text || word || "unknown");
export const stateClass = (word) => styles[word] || "";

export const cores = (millicores) => (millicores / 1000).toLocaleString("en", { maximumFractionDigits: 1 }) + " cores";
export const mib = (n) => (n >= 10240 ? (n / 1024).toLocaleString("en", { maximumFractionDigits: 1 }) + " GiB" : n.toLocaleString("en") + " MiB");
export const gb = (n) => n.toLocaleString("en") + " GB";
export const int = (v) => Number(v || 0);

// age since a time, short.
export function age(time) {
  if (!time) return "–";
  const s = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  if (s < 90) return Math.round(s) + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  if (s < 129600) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
}

export const clock = (time) => (time ? h("time", { datetime: time, title: time }, new Date(time).toLocaleString("en-GB", { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" })) : "–");

export const workloadLink = (id) => h("a", { href: "#/workloads/" + encodeURIComponent(id) }, id);
export const nodeLink = (id) => (id ? h("a", { href: "#/nodes/" + encodeURIComponent(id) }, id) : h("span", { class: "quiet" }, "none"));

export function toast(text, bad) {
  const el = h("div", { class: bad ? "bad" : "" }, text), box = document.getElementById("toasts");
  while (box.childElementCount > 2) box.firstElementChild.remove();
  box.append(el);
  setTimeout(() => el.remove(), bad ? 12000 : 5000);
}

// confirmed asks in a dialog and resolves to whether the person agreed.
export function confirmed(title, body, verb, danger) {
  return new Promise((resolve) => {
    const d = h("dialog", { "aria-labelledby": "dialog-title" },
      h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), h("div", {}, body),
        h("div", { class: "actions" }, h("button", { value: "no" }, "Cancel"), h("button", { value: "yes", class: danger ? "danger" : "main" }, verb))));
    d.addEventListener("close", () => { d.remove(); resolve(d.returnValue === "yes"); });
    document.body.append(d);
    d.showModal();
  });
}

// events as a list, newest first.
export function timeline(list, empty) {
  if (list.length === 0) return h("p", { class: "empty" }, empty || "Nothing has been recorded.");
  return h("ol", { class: "timeline" }, list.map((e) => h("li", {}, clock(e.at), h("div", {},
    h("strong", {}, e.type), " ",
    e.workload_id && [workloadLink(e.workload_id), " "], e.node_id && ["on ", nodeLink(e.node_id), " "],
    [e.reason, e.message].filter(Boolean).join(": "),
    Object.entries(e.details || {}).sort().map(([k, v]) => h("span", { class: "quiet" }, ` ${k.replaceAll("_", " ")} ${v}`)),
    e.by && h("span", { class: "quiet" }, " by " + e.by)))));
}
