// @ts-check
// Workloads: a list of any length. Only the visible rows are HTML elements, and a page of the list
// is read when its rows become visible.
import { get, query } from "./api.js";
import { age, h, nodeLink, replace, toast, until, workloadLink } from "./dom.js";
import { ended } from "./job.js";
import { refresh } from "./live.js";

const page = 100;
const states = ["Pending", "Scheduled", "Updating", "Running", "Stopped", "Failed", "Unknown", "RetryPending", "Deleting"];
const kinds = ["service", "job", "cron", "system"];

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function workloads(main, signal) {
  const wanted = new URLSearchParams(location.hash.split("?")[1] || "");
  /** @type {any[]} */
  let rows = [];
  // run is incremented with each change of the filter, so that answers for an earlier filter can be dropped.
  let next = "", more = true, run = 0;
  /** @type {any} */
  let failed = null;
  /** @type {Promise<void> | null} */
  let reading = null;
  let typing = 0;
  const searched = () => {
    clearTimeout(typing);
    typing = setTimeout(restart, 250);
  };
  const search = h("input", { type: "search", id: "search", value: wanted.get("search") || "", oninput: searched });
  const choice = (id, words) => h("select", { id, onchange: restart }, h("option", { value: "" }, "any"),
    words.map((s) => h("option", { value: s, selected: s === wanted.get(id) }, s)));
  const status = choice("status", states), kind = choice("kind", kinds);
  const field = (id, value) => h("input", { id, value: value || "", onchange: restart, autocomplete: "off" });
  const node = field("on-node", wanted.get("node")), namespace = field("namespace", wanted.get("namespace"));
  const shown = h("p", { class: "quiet", role: "status" });
  const space = h("div", { role: "presentation" });
  const view = h("div", { class: "view", tabIndex: 0, role: "region", "aria-label": "Workloads", onscroll: draw }, space);
  const titles = ["Workload", "State", "Kind", "Node", "Source, or what is wrong", "Age"];
  const head = h("div", { class: "head", "aria-hidden": "true" }, titles.map((t) => h("span", {}, t)));
  replace(main, h("h1", {}, "Workloads"),
    h("div", { class: "filters" }, h("label", {}, "Id, group or image", search), h("label", {}, "State", status),
      h("label", {}, "Kind", kind), h("label", {}, "Node", node), h("label", {}, "Namespace", namespace),
      h("a", { class: "button", href: "#/deploy" }, "Deploy …")),
    shown, h("div", { class: "list" }, head, view));

  // The height of a row in pixels; the style sheet gives it in rem.
  const height = () => parseFloat(getComputedStyle(view).getPropertyValue("--row"))
    * parseFloat(getComputedStyle(document.documentElement).fontSize) || 40;
  const filter = () => ({
    search: search.value.trim(), status: status.value, kind: kind.value,
    node_id: node.value.trim(), namespace: namespace.value.trim(),
  });

  // inSight is the range of rows on the screen, with five more at each end.
  function inSight() {
    const each = height(), first = Math.max(0, Math.floor(view.scrollTop / each) - 5);
    return { each, first, last: Math.min(rows.length, first + Math.ceil(view.clientHeight / each) + 10) };
  }

  async function readPage(mine) {
    try {
      const r = await get("/workloads" + query({ ...filter(), page_size: page, page_token: next }), signal);
      if (mine !== run) return;
      rows.push(...(r.workloads || []));
      next = r.next_page_token || "";
      more = next !== "";
    } catch (/** @type {any} */ e) {
      if (signal.aborted || mine !== run) return;
      failed = e;
      if (rows.length > 0) toast(e.message, true);
    } finally {
      if (mine === run) {
        reading = null;
        draw();
      }
    }
  }

  // read appends the next page of the list.
  function read() {
    if (!more || reading) return reading;
    failed = null;
    reading = readPage(run);
    return reading;
  }

  function row(w, top) {
    const next = w.template?.next_run, what = next ? `${w.image_or_source}, next run ${until(next)}` : w.image_or_source;
    const source = w.status === "Running" ? what : w.message || what;
    return h("div", { class: "row", style: { top } },
      workloadLink(w.workload_id), ended(w), h("span", { class: "quiet" }, w.kind || "service"),
      nodeLink(w.assigned_node_id || w.job_result?.node_id),
      h("span", { title: w.message || w.image_or_source }, source), h("span", { class: "quiet" }, age(w.created_at)));
  }

  function emptyText() {
    if (failed) return failed.message;
    if (more) return "Reading …";
    return Object.values(filter()).some(Boolean) ? "No workload matches." : "There is no workload yet; Deploy makes one.";
  }

  function draw() {
    const { each, first, last } = inSight();
    Object.assign(space.style, { height: rows.length * each + (more ? each : 0) + "px", position: "relative" });
    if (rows.length === 0) replace(space, h("div", { class: failed ? "note err" : "note" }, emptyText()));
    else replace(space, rows.slice(first, last).map((w, i) => row(w, (first + i) * each + "px")));
    const noun = rows.length === 1 ? "workload" : "workloads", rest = more ? " so far; more are read as you scroll" : "";
    shown.textContent = rows.length === 0 ? "" : `${rows.length} ${noun}${rest}`;
    if (more && !reading && !failed && last >= rows.length - page / 2) read();
  }

  function restart() {
    if (signal.aborted) return; // the page was left before the search field's timer fired
    run++;
    rows = [];
    next = "";
    more = true;
    failed = null;
    reading = null;
    // The address keeps the filter, so that going back restores it.
    history.replaceState(null, "", "#/workloads" + query({ ...filter(), node_id: "", node: node.value.trim() }));
    view.scrollTop = 0;
    draw();
  }

  // again reads the visible rows again, so that their states stay current.
  async function again() {
    if (rows.length === 0) {
      more = true; // the list had no rows, so read its first page again
      await read();
      if (failed?.status === 401) throw failed;
      return;
    }
    const mine = run, { first, last } = inSight();
    const after = first > 0 ? rows[first - 1].workload_id : "";
    const fields = { ...filter(), page_size: Math.max(page, last - first), page_token: after };
    const r = await get("/workloads" + query(fields), signal);
    if (mine !== run) return;
    const got = r.workloads || [];
    const end = got.length ? got[got.length - 1].workload_id : "";
    // Rows before and after the part that was read again stay as they are.
    const tail = r.next_page_token ? rows.slice(first).filter((w) => w.workload_id > end) : [];
    rows = [...rows.slice(0, first), ...got, ...tail];
    failed = null;
    if (tail.length === 0) {
      next = r.next_page_token || "";
      more = next !== "";
    }
    draw();
  }
  await refresh(again, signal, { about: (e) => e.workload_id, every: 10000 });
}
