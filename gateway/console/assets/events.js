// Events: what the cluster did and who asked for it, live.
import { fetchLines } from "./api.js";
import { live } from "./app.js";
import { card, h, replace, timeline } from "./dom.js";

export async function events(main, signal) {
  const list = (await fetchLines("/events?tail=500", signal)).reverse();
  const search = h("input", { type: "search", id: "event-search", oninput: draw });
  const kind = h("select", { onchange: draw }), box = h("div", {});
  replace(main, h("h1", {}, "Events"), h("div", { class: "filters" }, h("label", {}, "Type", kind), h("label", {}, "Workload, node, person or text", search)), card("", box));
  function kinds() {
    const was = kind.value;
    replace(kind, h("option", { value: "" }, "any"), [...new Set(list.map((e) => e.type))].sort().map((t) => h("option", { value: t, selected: t === was }, t)));
  }
  function draw() {
    const word = search.value.toLowerCase();
    replace(box, timeline(list.filter((e) => (!kind.value || e.type === kind.value) && (!word || JSON.stringify(e).toLowerCase().includes(word))).slice(0, 300), "No event matches."));
  }
  kinds();
  draw();
  let timer;
  live((e) => {
    if (list.some((x) => x.seq === e.seq)) return;
    list.unshift(e);
    if (list.length > 2000) list.pop();
    clearTimeout(timer);
    timer = setTimeout(() => { kinds(); draw(); }, 200);
  }, signal);
}
