// Overview: is all well, what needs a hand first, how full is it.
import { fetchLines, get } from "./api.js";
import { refresh } from "./app.js";
import { chart } from "./chart.js";
import { age, card, cores, facts, gb, h, int, mib, nodeLink, replace, state, table, timeline, workloadLink } from "./dom.js";

export async function overview(main, signal) {
  await refresh(async () => {
    const [status, sum, failed, retry, pending, lost, differ, recent] = await Promise.all([
      get("/status", signal), get("/summary", signal), get("/workloads?status=Failed&page_size=20", signal),
      get("/workloads?status=RetryPending&page_size=20", signal), get("/workloads?status=Pending&page_size=20", signal),
      get("/nodes?status=NotReady&page_size=20", signal), get("/drifts", signal), fetchLines("/events?tail=8", signal, { strict: true }),
    ]);
    replace(main, h("h1", {}, "Overview"),
      h("div", { class: "grid" },
        card("Cluster", facts([
          ["Mode", [state(status.mode), status.mode_reason ? " " + status.mode_reason : ""]],
          ["Leader", sum.leader_id ? state("leader", sum.leader_id) : state("dead", "none")],
          ["Term, index", `${status.term}, ${status.applied_index}`],
          ["Id", h("span", { class: "mono" }, status.cluster_id)], ["Shard", status.shard], ["Version", status.version],
        ])),
        card("Workloads", h("div", { class: "big" }, `${int(sum.running_workloads)} `, h("span", { class: "quiet" }, `of ${int(sum.total_workloads)} run`)),
          counts([["Pending", sum.pending_workloads], ["Scheduled", sum.scheduled_workloads], ["RetryPending", sum.retry_pending_workloads], ["Failed", sum.failed_workloads], ["Stopped", sum.stopped_workloads]])),
        card("Nodes", h("div", { class: "big" }, `${int(sum.ready_nodes)} `, h("span", { class: "quiet" }, `of ${int(sum.total_nodes)} ready`)),
          capacity(sum))),
      card("Needs attention", attention(status, lost.nodes || [], differ.drifts || [], [...(failed.workloads || []), ...(retry.workloads || []), ...(pending.workloads || [])])),
      card("Replicas", table(["Replica", "Role", "Health", { title: "Behind", num: true }, { title: "Last contact", num: true }, "Version", "Address"],
        (status.replicas || []).map((r) => [r.name || r.id, state(r.role), r.self ? state("alive", "answers you") : state(r.health),
          int(r.match_index) ? String(Math.max(0, int(status.last_index) - int(r.match_index))) : "–", int(r.last_contact_ms) ? r.last_contact_ms + " ms" : "–", r.version, h("span", { class: "mono" }, r.grpc_addr)]),
        "This replica knows of no other.")),
      card("Latest events", timeline(recent.reverse()), h("p", {}, h("a", { href: "#/events" }, "All events"))));
  }, signal);
}

// capacity of all nodes; what is used is known of those that measure it.
function capacity(sum) {
  const used = (v) => (int(sum.measured_nodes) > 0 ? int(v) : undefined);
  return [chart("CPU", "all cpu", { total: int(sum.total_cpu_millicores), reserved: int(sum.reserved_cpu_millicores), used: used(sum.used_cpu_millicores), unit: cores }),
    chart("Memory", "all memory", { total: int(sum.total_memory_mb), reserved: int(sum.reserved_memory_mb), used: used(sum.used_memory_mb), unit: mib }),
    int(sum.total_disk_gb) > 0 && chart("Disk", "all disk", { total: int(sum.total_disk_gb), reserved: int(sum.reserved_disk_gb), used: used(sum.used_disk_gb), unit: gb }),
    int(sum.measured_nodes) > 0 && int(sum.measured_nodes) < int(sum.total_nodes) && h("p", { class: "quiet" }, `In use: on the ${int(sum.measured_nodes)} nodes that measure it.`)];
}

function counts(list) {
  const some = list.filter(([, n]) => int(n) > 0);
  return some.length === 0 ? h("p", { class: "empty" }, "Nothing waits and nothing has failed.")
    : h("p", {}, some.map(([word, n]) => [h("a", { href: "#/workloads?status=" + word }, state(word, `${n} ${word}`)), " "]));
}

function attention(status, nodes, drifts, workloads) {
  const rows = [];
  if (status.mode && status.mode !== "normal") rows.push([state(status.mode), "the cluster", status.mode_reason, age(status.mode_changed_at)]);
  for (const r of status.replicas || []) if (["dead", "suspect"].includes(r.health)) rows.push([state(r.health), "replica " + (r.name || r.id), "has not been heard of; check its host, or remove it: persysctl replica remove " + (r.name || r.id), ""]);
  for (const n of nodes) rows.push([state(n.status), nodeLink(n.node_id), n.status_reason || "its lease has ended", age(n.status_updated_at)]);
  if (drifts.length) rows.push([state("Unknown", "Drift"), h("a", { href: "#/drifts" }, `${drifts.length} ${drifts.length === 1 ? "difference" : "differences"}`), "between what was asked for and what machines have", age(drifts[0].detected_at)]);
  for (const w of workloads) rows.push([state(w.status), workloadLink(w.workload_id), w.failure_reason || w.message || w.reason?.message || w.reason?.code || "", age(w.reason?.last_transition || w.last_updated)]);
  return table(["State", "What", "Why", { title: "Since", num: true }], rows, "Nothing. Every node is ready and every workload is as desired.");
}
