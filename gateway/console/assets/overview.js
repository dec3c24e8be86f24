// @ts-check
// Overview: the cluster's health, what needs attention, and capacity.
import { fetchLines, get } from "./api.js";
import { chart } from "./chart.js";
import {
  age, card, cores, facts, gb, h, int, mib, nodeLink, replace, state, table, timeline, workloadLink,
} from "./dom.js";
import { refresh } from "./live.js";

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function overview(main, signal) {
  await refresh(async () => {
    const [status, sum, failed, retry, pending, lost, differ, recent] = await Promise.all([
      get("/status", signal), get("/summary", signal), get("/workloads?status=Failed&page_size=20", signal),
      get("/workloads?status=RetryPending&page_size=20", signal), get("/workloads?status=Pending&page_size=20", signal),
      get("/nodes?status=NotReady&page_size=20", signal), get("/drifts", signal),
      fetchLines("/events?tail=8", signal, { strict: true }),
    ]);
    const unhappy = [failed, retry, pending].flatMap((r) => r.workloads || []);
    const behind = (r) => (int(r.match_index) ? String(Math.max(0, int(status.last_index) - int(r.match_index))) : "–");
    const replicaRow = (r) => [
      r.name || r.id, state(r.role), r.self ? state("alive", "answers you") : state(r.health), behind(r),
      int(r.last_contact_ms) ? r.last_contact_ms + " ms" : "–", r.version, h("span", { class: "mono" }, r.grpc_addr),
    ];
    replace(main, h("h1", {}, "Overview"),
      h("div", { class: "grid" },
        card("Cluster", facts([
          ["Mode", [state(status.mode), status.mode_reason ? " " + status.mode_reason : ""]],
          ["Leader", sum.leader_id ? state("leader", sum.leader_id) : state("dead", "none")],
          ["Term, index", `${status.term}, ${status.applied_index}`],
          ["Id", h("span", { class: "mono" }, status.cluster_id)], ["Shard", status.shard], ["Version", status.version],
        ])),
        card("Workloads",
          h("div", { class: "big" }, `${int(sum.running_workloads)} `,
            h("span", { class: "quiet" }, `of ${wanted(sum)} run`)),
          counts([
            ["Pending", sum.pending_workloads], ["Scheduled", sum.scheduled_workloads],
            ["RetryPending", sum.retry_pending_workloads], ["Failed", sum.failed_workloads],
            ["Stopped", sum.stopped_workloads],
          ])),
        card("Nodes",
          h("div", { class: "big" }, `${int(sum.ready_nodes)} `,
            h("span", { class: "quiet" }, `of ${int(sum.total_nodes)} ready`)),
          h("p", {}, h("a", { href: "#/nodes" }, "All nodes")))),
      card("Capacity", capacity(sum)),
      card("Needs attention", attention(status, lost.nodes || [], differ.drifts || [], unhappy)),
      card("Replicas", table(
        ["Replica", "Role", "Health", { title: "Behind", num: true }, { title: "Last contact", num: true }, "Version", "Address"],
        (status.replicas || []).map(replicaRow), "This replica knows of no other.")),
      card("Latest events", timeline(recent.reverse()), h("p", {}, h("a", { href: "#/events" }, "All events"))));
  }, signal);
}

// capacity draws charts of the resources of all nodes together. The measured use includes only nodes whose agents
// measure it.
function capacity(sum) {
  const used = (v) => (int(sum.measured_nodes) > 0 ? int(v) : undefined);
  const bar = (label, total, reserved, inUse, unit) => chart(label, "all " + label.toLowerCase(),
    { total: int(total), reserved: int(reserved), used: used(inUse), unit });
  const measured = int(sum.measured_nodes);
  return [h("div", { class: "charts" },
    bar("CPU", sum.total_cpu_millicores, sum.reserved_cpu_millicores, sum.used_cpu_millicores, cores),
    bar("Memory", sum.total_memory_mb, sum.reserved_memory_mb, sum.used_memory_mb, mib),
    int(sum.total_disk_gb) > 0 && bar("Disk", sum.total_disk_gb, sum.reserved_disk_gb, sum.used_disk_gb, gb)),
  measured > 0 && measured < int(sum.total_nodes)
  && h("p", { class: "quiet" }, `The used amounts cover only the ${measured} nodes that measure them.`),
  ];
}

// wanted is the number of workloads that are to run: all but those that were stopped, or that have finished.
const wanted = (sum) => int(sum.total_workloads) - int(sum.stopped_workloads);

function counts(list) {
  const some = list.filter(([, n]) => int(n) > 0);
  if (some.length === 0) return h("p", { class: "empty" }, "No workload waits and none has failed.");
  return h("p", {}, some.map(([word, n]) => [h("a", { href: "#/workloads?status=" + word }, state(word, `${n} ${word}`)), " "]));
}

function attention(status, nodes, drifts, workloads) {
  const rows = [];
  if (status.mode && status.mode !== "normal") {
    rows.push([state(status.mode), "the cluster", status.mode_reason, age(status.mode_changed_at)]);
  }
  for (const r of status.replicas || []) {
    if (!["dead", "suspect"].includes(r.health)) continue;
    const name = r.name || r.id;
    rows.push([state(r.health), "replica " + name, `does not answer; check its host, or: persysctl replica remove ${name}`, ""]);
  }
  for (const n of nodes) {
    rows.push([state(n.status), nodeLink(n.node_id), n.status_reason || "its lease has ended", age(n.status_updated_at)]);
  }
  if (drifts.length) {
    const link = h("a", { href: "#/drifts" }, `${drifts.length} ${drifts.length === 1 ? "difference" : "differences"}`);
    rows.push([state("Unknown", "Drift"), link, "between the desired state and the nodes", age(drifts[0].detected_at)]);
  }
  for (const w of workloads) {
    const why = w.failure_reason || w.message || w.reason?.message || w.reason?.code || "";
    rows.push([state(w.status), workloadLink(w.workload_id), why, age(w.reason?.last_transition || w.last_updated)]);
  }
  return table(["State", "What", "Why", { title: "Since", num: true }], rows,
    "Nothing. Every node is ready and every workload is as desired.");
}
