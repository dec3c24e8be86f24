// @ts-check
// The result of a job and the runs of its group, for the page of a workload.
import { age, card, clock, facts, h, int, nodeLink, state, table, workloadLink } from "./dom.js";

/** How long an instance ran; "" if its start or its end is unknown. @param {any} exit */
export function ran(exit) {
  if (!exit?.started_at || !exit.ended_at) return "";
  const s = (Date.parse(exit.ended_at) - Date.parse(exit.started_at)) / 1000;
  return s < 90 ? s.toFixed(1) + " s" : Math.round(s / 60) + " min";
}

/** @param {any} exit */
export const exitCode = (exit) => (exit ? String(int(exit.code)) : "");

/** The state of a workload; for a finished job, whether it succeeded or failed. @param {any} w */
export function ended(w) {
  if (w.template?.cron && w.desired_state === "Stopped") return state("Stopped", "Suspended");
  if (!w.job_result || w.desired_state !== "Running") return state(w.status);
  return w.job_result.succeeded ? state("Succeeded") : state("Failed");
}

/** The result of a job as a card; nothing for a service. @param {any} w */
export function resultCard(w) {
  if (w.kind !== "job" || w.template || w.spec?.job?.every_node && !w.owner) return null;
  const r = w.job_result;
  if (!r) return card("Result", h("p", { class: "empty" }, "The job has not finished."));
  return card("Result", facts([
    ["Result", r.succeeded ? state("Succeeded") : state("Failed")], ["Exit code", exitCode(r.exit)],
    ["Cause", !r.succeeded && r.message], ["Began", r.exit?.started_at && clock(r.exit.started_at)],
    ["Ended", clock(r.exit?.ended_at || r.finished_at)], ["Ran for", ran(r.exit)],
    ["Node", r.node_id && nodeLink(r.node_id)],
  ]));
}

/** The last lines of output of a finished job as a card; nothing if none are kept. @param {any} w */
export function outputCard(w) {
  const text = w.job_result?.exit?.output;
  return text && card("Last lines of output", h("pre", { tabIndex: 0, class: "tail" }, text));
}

/** The jobs of a group as a card. @param {string} group @param {any[]} jobs @param {boolean} more jobs are missing */
export function runsCard(group, jobs, more) {
  const row = (w) => [
    workloadLink(w.workload_id), ended(w), exitCode(w.job_result?.exit), workloadLink(w.workload_id, "Logs", "Logs"),
    String(int(w.retry_attempts)), nodeLink(w.job_result?.node_id || w.assigned_node_id),
    w.job_result ? age(w.job_result.finished_at) : "–",
  ];
  const columns = [
    "Job", "State", { title: "Exit code", num: true }, "Output", { title: "Failed attempts", num: true }, "Node",
    { title: "Ended", num: true },
  ];
  const done = jobs.filter((w) => w.job_result?.succeeded).length;
  return card("Runs of " + group, h("p", {}, `${done} of ${jobs.length}${more ? " shown" : ""} have succeeded.`),
    table(columns, jobs.map(row), "The group has no jobs.", true),
    more && h("p", {}, h("a", { href: "#/workloads?kind=job&search=" + encodeURIComponent(group) }, "All jobs of " + group)));
}
