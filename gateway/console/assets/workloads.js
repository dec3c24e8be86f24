// Workloads: a list of any length. Only the rows in sight exist, and pages are
// read as they come into sight.
import { get, query } from "./api.js";
import { refresh } from "./app.js";
import { age, h, nodeLink, replace, state, toast, workloadLink } from "./dom.js";

const page = 100;
const words = ["Pending", "Scheduled", "Updating", "Running", "Stopped", "Failed", "Unknown", "RetryPending", "Deleting"];

export async function workloads(main, signal) {
  const wanted = new URLSearchParams(location.hash.split("?")[1] || "");
  let rows = [], next = "", more = true, failed = null, reading = null, run = 0;
  const search = h("input", { type: "search", id: "search", value: wanted.get("search") || "", oninput: () => { clearTimeout(search.timer); search.timer = setTimeout(restart, 250); } });
  const status = h("select", { id: "status", onchange: restart }, h("option", { value: "" }, "any"), words.map((w) => h("option", { value: w, selected: w === wanted.get("status") }, w)));
  const node = h("input", { id: "on-node", value: wanted.get("node") || "", onchange: restart, autocomplete: "off" });
  const namespace = h("input", { id: "namespace", value: wanted.get("namespace") || "", onchange: restart, autocomplete: "off" });
  const shown = h("p", { class: "quiet", role: "status" });
  const space = h("div", { role: "presentation" });
  const view = h("div", { class: "view", tabIndex: 0, role: "region", "aria-label": "Workloads", onscroll: draw }, space);
  const head = h("div", { class: "head", "aria-hidden": "true" }, ["Workload", "State", "Node", "Source, or what is wrong", "Age"].map((t) => h("span", {}, t)));
  replace(main, h("h1", {}, "Workloads"), h("div", { class: "filters" }, h("label", {}, "Id, group or image", search), h("label", {}, "State", status), h("label", {}, "Node", node), h("label", {}, "Namespace", namespace),
    h("a", { class: "button", href: "#/deploy" }, "Deploy …")), shown, h("div", { class: "list" }, head, view));

  const height = () => parseFloat(getComputedStyle(view).getPropertyValue("--row")) * parseFloat(getComputedStyle(document.documentElement).fontSize) || 40;
  const filter = () => ({ search: search.value.trim(), status: status.value, node_id: node.value.trim(), namespace: namespace.value.trim() });

  // read gets the page after the last.
  function read() {
    if (!more || reading) return reading;
    const mine = run;
    failed = null;
    reading = get("/workloads" + query({ ...filter(), page_size: page, page_token: next }), signal).then((r) => {
      if (mine !== run) return;
      rows.push(...(r.workloads || []));
      next = r.next_page_token || "";
      more = next !== "";
    }).catch((e) => { if (!signal.aborted && mine === run) { failed = e; if (rows.length > 0) toast(e.message, true); } }).finally(() => { if (mine === run) { reading = null; draw(); } });
    return reading;
  }

  function draw() {
    const each = height();
    const first = Math.max(0, Math.floor(view.scrollTop / each) - 5), last = Math.min(rows.length, first + Math.ceil(view.clientHeight / each) + 10);
    Object.assign(space.style, { height: rows.length * each + (more ? each : 0) + "px", position: "relative" });
    if (rows.length === 0) {
      replace(space, h("div", { class: failed ? "note err" : "note" }, failed ? failed.message : more ? "Reading …" : Object.values(filter()).some(Boolean) ? "No workload matches." : "There is no workload yet; Deploy makes one."));
    } else {
      replace(space, rows.slice(first, last).map((w, i) => h("div", { class: "row", style: { top: (first + i) * each + "px" } },
        workloadLink(w.workload_id), state(w.status), nodeLink(w.assigned_node_id), h("span", { title: w.message || w.image_or_source }, w.status === "Running" ? w.image_or_source : w.message || w.image_or_source), h("span", { class: "quiet" }, age(w.created_at)))));
    }
    shown.textContent = rows.length === 0 ? "" : `${rows.length} ${rows.length === 1 ? "workload" : "workloads"}${more ? " so far; more are read as you scroll" : ""}`;
    if (more && !reading && !failed && last >= rows.length - page / 2) read();
  }

  function restart() {
    if (signal.aborted) return; // the last letter of the search, and away
    run++;
    rows = []; next = ""; more = true; failed = null; reading = null;
    history.replaceState(null, "", "#/workloads" + query({ ...filter(), node_id: "", node: node.value.trim() })); // for the way back
    view.scrollTop = 0;
    draw();
  }

  // again reads the pages in sight anew, so that states stay true.
  async function again() {
    if (rows.length === 0) {
      more = true; // there may be some now
      await read();
      if (failed?.status === 401) throw failed;
      return;
    }
    const mine = run, each = height();
    const first = Math.max(0, Math.floor(view.scrollTop / each) - 5), last = Math.min(rows.length, first + Math.ceil(view.clientHeight / each) + 10);
    const r = await get("/workloads" + query({ ...filter(), page_size: Math.max(page, last - first), page_token: first > 0 ? rows[first - 1].workload_id : "" }), signal);
    if (mine !== run) return;
    const got = r.workloads || [];
    const end = got.length ? got[got.length - 1].workload_id : "";
    // What lies beyond the part read stays; what was in it is replaced.
    const tail = r.next_page_token ? rows.slice(first).filter((w) => w.workload_id > end) : [];
    rows = [...rows.slice(0, first), ...got, ...tail];
    failed = null;
    if (tail.length === 0) { next = r.next_page_token || ""; more = next !== ""; }
    draw();
  }
  await refresh(again, signal, { about: (e) => e.workload_id, every: 10000 });
}
