// @ts-check
// The page of all events as they happen, and the audit page: the events that a caller caused.
import { fetchLines } from "./api.js";
import { card, h, replace, timeline } from "./dom.js";
import { live } from "./live.js";

/** @param {HTMLElement} main @param {AbortSignal} signal */
export const events = (main, signal) => show(main, signal, "Events", "/events?tail=500", () => true);

/** Changes, joins and refused calls, with their callers. @param {HTMLElement} main @param {AbortSignal} signal */
export const audit = (main, signal) => show(main, signal, "Audit", "/events", (e) => {
  const d = e.details || {};
  return d.caller || (d.from && !d.to); // if the event has "to", then "from" is a state and not the address of a caller
});

async function show(main, signal, title, path, belongs) {
  const list = (await fetchLines(path, signal)).filter(belongs).reverse();
  const search = h("input", { type: "search", id: "event-search", oninput: draw });
  const kind = h("select", { onchange: draw }), box = h("div", {});
  replace(main, h("h1", {}, title),
    h("div", { class: "filters" },
      h("label", {}, "Type", kind), h("label", {}, "Workload, node, person or text", search)),
    card("", box));
  function drawTypes() {
    const chosen = kind.value;
    const types = [...new Set(list.map((e) => e.type))].sort();
    replace(kind, h("option", { value: "" }, "any"), types.map((t) => h("option", { value: t, selected: t === chosen }, t)));
  }
  function draw() {
    const word = search.value.toLowerCase();
    const matches = (e) => (!kind.value || e.type === kind.value) && JSON.stringify(e).toLowerCase().includes(word);
    replace(box, timeline(list.filter(matches).slice(0, 300), list.length ? "No event matches." : "Nothing yet."));
  }
  drawTypes();
  draw();
  let due = false;
  live((e) => {
    if (!belongs(e) || list.some((x) => x.seq === e.seq)) return;
    list.unshift(e);
    if (list.length > 2000) list.pop();
    if (due) return;
    due = true;
    setTimeout(() => {
      due = false;
      drawTypes();
      draw();
    }, 200);
  }, signal);
}
