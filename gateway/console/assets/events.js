// Events, live: all that the cluster did, or only what people and programs asked
// for and from where (the audit).
import { fetchLines } from "./api.js";
import { live } from "./app.js";
import { card, h, replace, timeline } from "./dom.js";

export const events = (main, signal) => show(main, signal, "Events", "/events?tail=500", () => true);

// audit shows the calls that changed something, joins, and what was refused.
export const audit = (main, signal) => show(main, signal, "Audit", "/events", (e) => {
  const d = e.details || {};
  return d.caller || (d.from && !d.to); // a change of state has a from of its own
});

async function show(main, signal, title, path, belongs) {
  const list = (await fetchLines(path, signal)).filter(belongs).reverse();
  const search = h("input", { type: "search", id: "event-search", oninput: draw });
  const kind = h("select", { onchange: draw }), box = h("div", {});
  replace(main, h("h1", {}, title), h("div", { class: "filters" }, h("label", {}, "Type", kind), h("label", {}, "Workload, node, person or text", search)), card("", box));
  function kinds() {
    const was = kind.value;
    replace(kind, h("option", { value: "" }, "any"), [...new Set(list.map((e) => e.type))].sort().map((t) => h("option", { value: t, selected: t === was }, t)));
  }
  function draw() {
    const word = search.value.toLowerCase();
    replace(box, timeline(list.filter((e) => (!kind.value || e.type === kind.value) && (!word || JSON.stringify(e).toLowerCase().includes(word))).slice(0, 300), list.length ? "No event matches." : "Nothing yet."));
  }
  kinds();
  draw();
  let timer = 0;
  live((e) => {
    if (!belongs(e) || list.some((x) => x.seq === e.seq)) return;
    list.unshift(e);
    if (list.length > 2000) list.pop();
    timer ||= setTimeout(() => { timer = 0; kinds(); draw(); }, 200);
  }, signal);
}
