// Nodes: a map, a list, one node, and taking one out of service with a preview.
import { fetchLines, get, post, query } from "./api.js";
import { refresh } from "./app.js";
import { chart } from "./chart.js";
import { age, card, clock, confirmed, cores, facts, gb, h, int, meter, mib, nodeLink, replace, state, stateClass, table, timeline, toast, workloadLink } from "./dom.js";

const millis = (n) => Math.round((n.total_cpu_cores || 0) * 1000);

// measured is what a node uses; undefined for an agent that does not measure.
const measured = (n, field) => (int(n.usage?.cpu_used_millicores) + int(n.usage?.memory_used_mb) > 0 ? int(n.usage[field]) : undefined);

// all pages of the nodes, in order.
async function everyNode(signal) {
  const out = [];
  for (let token = "", i = 0; i < 50; i++) {
    const r = await get("/nodes" + query({ page_size: 1000, page_token: token }), signal);
    out.push(...(r.nodes || []));
    if (!(token = r.next_page_token)) break;
  }
  return out;
}

export async function nodes(main, signal) {
  let all = [];
  let view = localStorage.getItem("nodes-view") || "list";
  const body = h("div", {});
  const search = h("input", { type: "search", id: "node-search", oninput: () => draw() });
  const pick = (v) => h("button", { type: "button", "aria-pressed": String(view === v), onclick: (e) => {
    view = v;
    localStorage.setItem("nodes-view", v);
    e.target.parentElement.querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed", String(b === e.target)));
    draw();
  } }, v === "map" ? "Map" : "List");
  replace(main, h("h1", {}, "Nodes"), h("div", { class: "filters" }, h("label", {}, "Name or label", search), h("div", { role: "group", "aria-label": "View" }, pick("list"), " ", pick("map"))), body);
  const labels = (n) => Object.entries(n.labels || {}).sort().map(([k, v]) => `${k}=${v}`);
  function draw() {
    const word = search.value.toLowerCase();
    const list = all.filter((n) => !word || n.node_id.toLowerCase().includes(word) || labels(n).join(" ").toLowerCase().includes(word));
    if (all.length === 0) { replace(body, card("", h("p", { class: "empty" }, "No node has registered. Start an agent on a machine: persys-agent --help"))); return; }
    if (view === "map") {
      replace(body, h("div", { class: "map" }, list.map((n) => h("a", { href: "#/nodes/" + encodeURIComponent(n.node_id), class: n.cordoned ? "warn" : stateClass(n.status), title: `${n.node_id}: ${n.status}` },
        n.node_id, h("div", { class: "quiet" }, n.cordoned ? "cordoned" : n.status), meter("CPU", int(n.reserved_cpu_millicores), millis(n), cores)))));
      return;
    }
    replace(body, card("", table(["Node", "State", { title: "Workloads", num: true }, "CPU", "Memory", "Labels", { title: "Heard", num: true }],
      list.slice(0, 500).map((n) => [nodeLink(n.node_id), [state(n.status), n.cordoned && " cordoned"], String(int(n.workloads)),
        meter("", int(n.reserved_cpu_millicores), millis(n), cores), meter("", int(n.reserved_memory_mb), int(n.total_memory_mb), mib),
        labels(n).join(" "), age(n.last_heartbeat)]), "No node matches."),
      list.length > 500 && h("p", { class: "quiet" }, `500 of ${list.length} are shown; narrow the search.`)));
  }
  await refresh(async () => { all = await everyNode(signal); draw(); }, signal, { about: (e) => e.node_id });
}

export async function node(main, signal, id) {
  const at = "/nodes/" + encodeURIComponent(id);
  const act = async (path, body, done) => {
    try { await post(at + path, body); toast(done); } catch (e) { toast(e.message, true); }
    show();
  };
  async function drain() {
    let plan;
    try { plan = await post(at + "/drain", { on: true, preview: true }); } catch (e) { toast(e.message, true); return; }
    const stuck = (plan.moves || []).filter((m) => !m.to_node_id).length;
    const yes = await confirmed(`Drain ${id}?`, [
      h("p", {}, "It takes no new workload, and what runs here moves:"),
      table(["Workload", "Goes to"], (plan.moves || []).map((m) => [m.workload_id, m.to_node_id || h("span", { class: "err" }, "nowhere: " + m.reason)]), "Nothing runs here."),
      stuck > 0 && h("p", { class: "err" }, `${stuck} would wait until there is room.`)], "Drain", stuck > 0);
    if (yes) await act("/drain", { on: true }, `${id} is draining.`);
  }
  async function fence() {
    if (await confirmed(`Is ${id} really dead?`, h("p", {}, "Fencing says that nothing on this machine runs any more. Exclusive workloads then start elsewhere. If it still runs, they run twice."), "It is dead: fence it", true)) await act("/fence", {}, `${id} is fenced.`);
  }
  async function show() {
    const [r, list, log] = await Promise.all([get(at, signal), get("/workloads" + query({ node_id: id, page_size: 500 }), signal), fetchLines("/events" + query({ node_id: id, tail: 30 }), signal, { strict: true })]);
    const n = r.node;
    replace(main, h("h1", {}, id),
      h("div", { class: "actions" },
        n.cordoned ? h("button", { onclick: () => act("/cordon", { on: false }, `${id} takes workloads again.`) }, "Uncordon") : h("button", { onclick: () => act("/cordon", { on: true }, `${id} takes no new workloads.`) }, "Cordon"),
        n.status === "Draining" ? h("button", { onclick: () => act("/drain", { on: false }, `${id} is no longer draining.`) }, "End the drain") : h("button", { onclick: drain }, "Drain …"),
        n.status === "NotReady" && h("button", { class: "danger", onclick: fence }, "Fence …")),
      h("div", { class: "grid" },
        card("State", facts([["State", [state(n.status), n.cordoned && " cordoned"]], ["Why", n.status_reason], ["Heard", age(n.last_heartbeat) + " ago"], ["Lease ends", n.lease_expires_at && clock(n.lease_expires_at)],
          ["Endpoint", h("span", { class: "mono" }, n.grpc_endpoint)], ["Runs", (n.supported_workload_types || []).join(", ")], ["Agent", n.agent_version],
          ["Labels", Object.entries(n.labels || {}).sort().map(([k, v]) => `${k}=${v}`).join(" ")], ["Taints", (n.taints || []).map((t) => `${t.key}=${t.value}:${t.effect}`).join(" ")]])),
        card("Reserved and used against capacity",
          chart("CPU", id + " cpu", { total: millis(n), reserved: int(n.reserved_cpu_millicores), used: measured(n, "cpu_used_millicores"), unit: cores }),
          chart("Memory", id + " memory", { total: int(n.total_memory_mb), reserved: int(n.reserved_memory_mb), used: measured(n, "memory_used_mb"), unit: mib }),
          (n.storage_pools || []).map((p) => chart(`Pool ${p.name}`, id + " pool " + p.name, { total: int(p.total_gb), reserved: int(p.reserved_gb), used: p.used_gb && int(p.used_gb), unit: gb })))),
      card(`Workloads (${int(n.workloads)})`, table(["Workload", "State", "Image or source", { title: "Age", num: true }], (list.workloads || []).map((w) => [workloadLink(w.workload_id), state(w.status), w.image_or_source, age(w.created_at)]), "Nothing is placed here."),
        list.next_page_token && h("p", {}, h("a", { href: "#/workloads" + query({ node: id }) }, `All workloads of ${id}`))),
      card("Events", timeline(log.reverse())));
  }
  await refresh(show, signal, { about: (e) => e.node_id === id });
}
