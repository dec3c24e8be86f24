// @ts-check
// Nodes: a list or a map of all, one node in detail, cordon, drain with a preview, fence.
import { fetchLines, get, permissions, post, query } from "./api.js";
import { chart } from "./chart.js";
import {
  age, card, clock, confirmed, cores, facts, gb, h, int, labelTexts, meter, mib, nodeLink, replace, state, stateClass,
  table, timeline, toast, workloadLink,
} from "./dom.js";
import { refresh } from "./live.js";
import { usageCard } from "./usage.js";

const millicores = (n) => Math.round((n.total_cpu_cores || 0) * 1000);

// usage is the measured use of one resource of a node; undefined if the agent does not measure it.
function usage(n, field) {
  const measures = int(n.usage?.cpu_used_millicores) + int(n.usage?.memory_used_mb) > 0;
  return measures ? int(n.usage[field]) : undefined;
}

const taintText = (t) => t.key + (t.value ? "=" + t.value : "") + ":" + t.effect + (int(t.seconds) ? ":" + int(t.seconds) : "");

// setKeys lists the labels and taints that users set on a node, and, with a minus, the labels and taints that users
// removed.
const setKeys = (n) => [...(n.set_labels || []), ...(n.set_taints || []),
...[...(n.removed_labels || []), ...(n.removed_taints || [])].map((k) => k + "-")];

// allNodes reads every page of the list, at most 50,000 nodes.
async function allNodes(signal) {
  const out = [];
  for (let token = "", i = 0; i < 50; i++) {
    const r = await get("/nodes" + query({ page_size: 1000, page_token: token }), signal);
    out.push(...(r.nodes || []));
    if (!(token = r.next_page_token)) break;
  }
  return out;
}

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function nodes(main, signal) {
  /** @type {any[]} */
  let all = [];
  let view = localStorage.getItem("nodes-view") || "list";
  const body = h("div", {});
  const search = h("input", { type: "search", id: "node-search", oninput: () => draw() });
  function choose(e, chosen) {
    view = chosen;
    localStorage.setItem("nodes-view", chosen);
    e.target.parentElement.querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed", String(b === e.target)));
    draw();
  }
  const button = (v, text) => h("button",
    { type: "button", "aria-pressed": String(view === v), onclick: (e) => choose(e, v) }, text);
  replace(main, h("h1", {}, "Nodes"),
    h("div", { class: "filters" }, h("label", {}, "Name or label", search),
      h("div", { role: "group", "aria-label": "View" }, button("list", "List"), " ", button("map", "Map"))), body);
  const matches = (n, word) => (n.node_id + " " + labelTexts(n.labels).join(" ")).toLowerCase().includes(word);
  const tile = (n) => h("a", {
    href: "#/nodes/" + encodeURIComponent(n.node_id), class: n.cordoned ? "warn" : stateClass(n.status),
    title: `${n.node_id}: ${n.status}`,
  }, n.node_id, h("div", { class: "quiet" }, n.cordoned ? "cordoned" : n.status),
    meter("CPU", int(n.reserved_cpu_millicores), millicores(n), cores));
  const row = (n) => [
    nodeLink(n.node_id), [state(n.status), n.cordoned && " cordoned"], String(int(n.workloads)),
    meter("", int(n.reserved_cpu_millicores), millicores(n), cores),
    meter("", int(n.reserved_memory_mb), int(n.total_memory_mb), mib),
    labelTexts(n.labels).join(" "), age(n.last_heartbeat),
  ];
  function draw() {
    const list = all.filter((n) => matches(n, search.value.toLowerCase()));
    if (all.length === 0) {
      const text = "No node has registered. Start an agent on a machine: persys-agent --help";
      replace(body, card("", h("p", { class: "empty" }, text)));
    } else if (view === "map") {
      replace(body, h("div", { class: "map" }, list.map(tile)));
    } else {
      const num = (title) => ({ title, num: true });
      const columns = ["Node", "State", num("Workloads"), "CPU", "Memory", "Labels", num("Heard")];
      replace(body, card("", table(columns, list.slice(0, 500).map(row), "No node matches."),
        list.length > 500 && h("p", { class: "quiet" }, `500 of ${list.length} are shown; narrow the search.`)));
    }
  }
  await refresh(async () => {
    all = await allNodes(signal);
    draw();
  }, signal, { about: (e) => e.node_id });
}

/** @param {HTMLElement} main @param {AbortSignal} signal @param {string} id */
export async function node(main, signal, id) {
  const at = "/nodes/" + encodeURIComponent(id);
  const act = async (path, body, done) => {
    try {
      await post(at + path, body);
      toast(done);
    } catch (/** @type {any} */ e) {
      toast(e.message, true);
    }
    show();
  };
  async function drain() {
    let plan;
    try {
      plan = await post(at + "/drain", { on: true, preview: true });
    } catch (/** @type {any} */ e) {
      toast(e.message, true);
      return;
    }
    const moves = plan.moves || [], stuck = moves.filter((m) => !m.to_node_id && !m.stays_until).length;
    const goal = (m) => (m.stays_until ? "ends here by " + clock(m.stays_until) + ", or moves then"
      : m.to_node_id || h("span", { class: "err" }, "nowhere: " + m.reason));
    const row = (m) => [m.workload_id, goal(m)];
    const yes = await confirmed(`Drain ${id}?`, [
      h("p", {}, "It takes no new workload, and its workloads move:"),
      table(["Workload", "Goes to"], moves.map(row), "Nothing runs here."),
      stuck > 0 && h("p", { class: "err" }, `${stuck} would wait until another node has room.`)], "Drain", stuck > 0);
    if (yes) await act("/drain", { on: true }, `${id} is draining.`);
  }
  async function fence() {
    const text = "Fencing states that nothing on this machine runs any more. Exclusive workloads then start elsewhere. "
      + "If the machine still runs them, they run twice.";
    if (!await confirmed(`Is ${id} really dead?`, h("p", {}, text), "The machine is off: fence it", true)) return;
    await act("/fence", {}, `${id} is fenced.`);
  }
  const cordon = (n) => (n.cordoned
    ? h("button", { onclick: () => act("/cordon", { on: false }, `${id} takes workloads again.`) }, "Uncordon")
    : h("button", { onclick: () => act("/cordon", { on: true }, `${id} takes no new workloads.`) }, "Cordon"));
  const drainButton = (n) => (n.status === "Draining"
    ? h("button", { onclick: () => act("/drain", { on: false }, `${id} is no longer draining.`) }, "End the drain")
    : h("button", { onclick: drain }, "Drain …"));
  const pool = (p) => chart(`Pool ${p.name}`, id + " pool " + p.name,
    { total: int(p.total_gb), reserved: int(p.reserved_gb), used: p.used_gb && int(p.used_gb), unit: gb });
  const workloadRow = (w) => [workloadLink(w.workload_id), state(w.status), w.image_or_source, age(w.created_at)];
  const rights = permissions(["nodes", "fence"], signal), used = usageCard(at, signal);
  async function show() {
    const [steers, fences] = await rights("*");
    const [r, list, log] = await Promise.all([
      get(at, signal), get("/workloads" + query({ node_id: id, page_size: 500 }), signal),
      fetchLines("/events" + query({ node_id: id, tail: 30 }), signal, { strict: true }),
    ]);
    const n = r.node;
    replace(main, h("h1", {}, id),
      (steers || fences) && h("div", { class: "actions" }, steers && [cordon(n), drainButton(n)],
        fences && n.status === "NotReady" && h("button", { class: "danger", onclick: fence }, "Fence …")),
      h("div", { class: "grid" },
        card("State", facts([
          ["State", [state(n.status), n.cordoned && " cordoned"]], ["Why", n.status_reason],
          ["Running jobs may end until", n.jobs_until && clock(n.jobs_until)],
          ["Heard", age(n.last_heartbeat) + " ago"], ["Lease ends", n.lease_expires_at && clock(n.lease_expires_at)],
          ["Endpoint", h("span", { class: "mono" }, n.grpc_endpoint)],
          ["Runs", (n.supported_workload_types || []).join(", ")], ["Agent", n.agent_version],
          ["Labels", labelTexts(n.labels).join(" ")],
          ["Taints", (n.taints || []).map(taintText).join(" ")],
          ["Set by people", setKeys(n).join(" ")],
        ])),
        card("Reserved and used against capacity",
          chart("CPU", id + " cpu", {
            total: millicores(n), reserved: int(n.reserved_cpu_millicores), used: usage(n, "cpu_used_millicores"), unit: cores,
          }),
          chart("Memory", id + " memory", {
            total: int(n.total_memory_mb), reserved: int(n.reserved_memory_mb), used: usage(n, "memory_used_mb"), unit: mib,
          }),
          (n.storage_pools || []).map(pool))),
      used,
      card(`Workloads (${int(n.workloads)})`,
        table(["Workload", "State", "Image or source", { title: "Age", num: true }],
          (list.workloads || []).map(workloadRow), "Nothing is placed here."),
        list.next_page_token && h("p", {}, h("a", { href: "#/workloads" + query({ node: id }) }, `All workloads of ${id}`))),
      card("Events", timeline(log.reverse())));
  }
  await refresh(show, signal, { about: (e) => e.node_id === id });
}
