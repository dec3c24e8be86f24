// @ts-check
// Drifts: differences between the schedulers' state and the nodes, and what to do about orphans.
import { del, get, post } from "./api.js";
import { age, card, confirmed, h, nodeLink, replace, state, table, toast, workloadLink } from "./dom.js";
import { refresh } from "./live.js";

/** @type {Record<string, string>} */
const words = {
  orphan_on_agent: "runs there, but the schedulers have no such workload",
  state_mismatch: "is not in the desired state",
  revision_mismatch: "runs another revision",
  missing_on_agent: "does not run there",
};
const explanation = "The leader compares every node with the desired state about twice a minute. It repairs differences, except "
  + "orphans, which wait for your decision. If the schedulers never knew an orphan, adopting it needs its "
  + "specification: persysctl drift adopt NODE WORKLOAD -f FILE";

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function drifts(main, signal) {
  const at = (d) => `/nodes/${encodeURIComponent(d.node_id)}/drifts/${encodeURIComponent(d.workload_id)}`;
  const act = async (done, fn) => {
    try {
      await fn();
      toast(done);
    } catch (/** @type {any} */ e) {
      toast(e.message, true);
    }
    await show();
  };
  async function remove(d) {
    const text = "The schedulers know no such workload there. It is stopped and removed from its node, with its data.";
    if (!await confirmed(`Delete ${d.workload_id} on ${d.node_id}?`, h("p", {}, text), "Delete", true)) return;
    await act(`${d.workload_id} is being deleted on ${d.node_id}.`, () => del(at(d)));
  }
  const adopt = (d) => act(`${d.workload_id} belongs to the cluster again.`, () => post(at(d) + "/adopt", {}));
  function row(d) {
    const orphan = d.type === "orphan_on_agent";
    return [
      orphan ? d.workload_id : workloadLink(d.workload_id), nodeLink(d.node_id),
      state(orphan ? "Unknown" : "Failed", words[d.type] || d.type), d.scheduler_status, d.agent_status,
      (d.action || "").replaceAll("_", " "), age(d.detected_at),
      orphan && [h("button", { onclick: () => adopt(d) }, "Adopt"), " ",
      h("button", { class: "danger", onclick: () => remove(d) }, "Delete …")],
    ];
  }
  async function show() {
    const list = (await get("/drifts", signal)).drifts || [];
    const columns = ["Workload", "Node", "What differs", "Desired", "Found", "Action", { title: "Since", num: true }, ""];
    replace(main, h("h1", {}, "Drifts"),
      card("", table(columns, list.map(row), "Every machine has what was asked for.")),
      h("p", { class: "quiet" }, explanation));
  }
  await refresh(show, signal);
}
