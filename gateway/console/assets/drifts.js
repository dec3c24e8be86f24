// Drifts: where machines differ from what was asked for, and what is done about it.
import { del, get, post } from "./api.js";
import { refresh } from "./app.js";
import { age, card, confirmed, h, nodeLink, replace, state, table, toast, workloadLink } from "./dom.js";

const words = {
  orphan_on_agent: "runs there and is not known here", state_mismatch: "is not in the state that was asked for",
  revision_mismatch: "runs another revision", missing_on_agent: "does not run there",
};

export async function drifts(main, signal) {
  const at = (d) => `/nodes/${encodeURIComponent(d.node_id)}/drifts/${encodeURIComponent(d.workload_id)}`;
  const act = async (done, fn) => {
    try { await fn(); toast(done); } catch (e) { toast(e.message, true); }
    await show();
  };
  async function remove(d) {
    if (await confirmed(`Delete ${d.workload_id} on ${d.node_id}?`, h("p", {}, "Nobody has asked for it here. It is stopped and removed from its node; its data goes with it."), "Delete", true)) await act(`${d.workload_id} is being deleted on ${d.node_id}.`, () => del(at(d)));
  }
  const orphan = (d) => d.type === "orphan_on_agent";
  async function show() {
    const list = (await get("/drifts", signal)).drifts || [];
    replace(main, h("h1", {}, "Drifts"),
      card("", table(["Workload", "Node", "What is wrong", "Asked for", "There", "What is done", { title: "Since", num: true }, ""], list.map((d) => [
        orphan(d) ? d.workload_id : workloadLink(d.workload_id), nodeLink(d.node_id), state(orphan(d) ? "Unknown" : "Failed", words[d.type] || d.type), d.scheduler_status, d.agent_status,
        (d.action || "").replaceAll("_", " "), age(d.detected_at),
        orphan(d) && [h("button", { onclick: () => act(`${d.workload_id} belongs to the cluster again.`, () => post(at(d) + "/adopt", {})) }, "Adopt"), " ", h("button", { class: "danger", onclick: () => remove(d) }, "Delete …")],
      ]), "Every machine has what was asked for.")),
      h("p", { class: "quiet" }, "Every machine is compared about twice a minute. What can be repaired is repaired by itself; what nobody asked for is never touched without you. Adopting what was never known here needs its specification: persysctl drift adopt -f FILE."));
  }
  await refresh(show, signal);
}
