// @ts-check
// A table of the nodes that says for each node why the planner chose or refused the node, for the pages of a workload
// and of a plan.
import { nodeLink, reasonText, state, table } from "./dom.js";

/** @param {any[]} list verdicts, best first @param {string} [here] the node that has the workload */
export function verdicts(list, here) {
  const row = (n) => [
    nodeLink(n.node_id),
    n.node_id === here ? state("Running", "here") : n.feasible ? state("Ready", "fits") : state("Failed", "no"),
    n.feasible ? Number(n.score || 0).toFixed(3) : "–",
    n.feasible ? (n.score_parts || []).join(" ") : reasonText(n.filter, n.reason),
  ];
  return table(["Node", "Verdict", { title: "Score", num: true }, "Why"], list.slice(0, 200).map(row), "There are no nodes.");
}
