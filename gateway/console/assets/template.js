// @ts-check
// Crons, parameterized jobs and system workloads: their schedule, their runs or members, and starting a run. They are
// templates, which never run themselves.
import { get, post, query } from "./api.js";
import { card, clock, facts, h, int, nodeLink, replace, table, until, workloadLink } from "./dom.js";
import { memberTable, readMembers } from "./group.js";
import { ended, exitCode, ran } from "./job.js";

/** Reports whether a workload is a system workload, which has a member on each node. @param {any} w with its spec */
export const isSystem = (w) => !w.owner && (w.kind === "system" || !!w.spec?.job?.every_node);
/** @param {any} w with its spec */
export const isTemplate = (w) => !!w.template || isSystem(w);

/** The schedule of a cron in one text. @param {any} c */
export const scheduleText = (c) => [c.schedule, c.time_zone || "UTC"].join(" ");

// inZone is the time of the next run in the time zone of the schedule, for readers in another time zone.
function inZone(time, zone) {
  if (!time || zone === Intl.DateTimeFormat().resolvedOptions().timeZone) return "";
  try {
    return clock(time, zone);
  } catch {
    return ""; // the browser does not know the zone
  }
}

/** The schedule and the last results of a cron or a parameterized job as a card. @param {any} w */
export function scheduleCard(w) {
  const t = w.template, c = t.cron, zone = c?.time_zone || "UTC";
  const kept = c && `${int(c.keep_succeeded)} that succeeded, ${int(c.keep_failed)} that failed`;
  return card(c ? "Schedule" : "Results", facts([
    ["Schedule", c && h("span", { class: "mono" }, c.schedule)], ["Time zone", c && zone],
    ["Next run", t.next_run ? [clock(t.next_run), h("span", { class: "quiet" }, ", " + until(t.next_run))] : c && "none"],
    ["In " + zone, inZone(t.next_run, zone)],
    ["Overlapping runs", c && (c.concurrency || "allow")],
    ["Starts at most", int(c?.starting_deadline_seconds) ? c.starting_deadline_seconds + " s late" : ""],
    ["Kept runs", kept],
    ["Last run", t.last_run && [clock(t.last_run), " ", t.last_run_id && workloadLink(t.last_run_id)]],
    ["Last success", t.last_success && clock(t.last_success)], ["Last failure", t.last_failure && clock(t.last_failure)],
  ]));
}

const pages = 5; // maximum number of list pages that are read to find the runs of a template

/** Reads the runs of a template, newest first. @param {string} id @param {AbortSignal} signal */
async function readRuns(id, signal) {
  /** @type {any[]} */
  const runs = [];
  let token = "";
  for (let i = 0; i < pages; i++) {
    const r = await get("/workloads" + query({ search: id, kind: "job", page_size: 1000, page_token: token }), signal);
    runs.push(...(r.workloads || []).filter((w) => w.owner === id));
    if (!(token = r.next_page_token || "")) break;
  }
  return runs.sort((a, b) => Date.parse(b.created_at) - Date.parse(a.created_at));
}

const shown = 200; // runs in the table

/** The runs of a cron or a parameterized job as a card. @param {any[]} runs @param {boolean} cron */
function historyCard(runs, cron) {
  const num = (title) => ({ title, num: true });
  const row = (w) => [
    workloadLink(w.workload_id), ended(w), exitCode(w.job_result?.exit), workloadLink(w.workload_id, "Logs", "Logs"),
    ...(cron ? [w.scheduled_at ? clock(w.scheduled_at) : "by hand"] : []), clock(w.created_at), ran(w.job_result?.exit),
    nodeLink(w.job_result?.node_id || w.assigned_node_id),
  ];
  const columns = ["Run", "State", num("Exit code"), "Output", ...(cron ? ["Scheduled"] : []), "Created", num("Ran for"), "Node"];
  return card("Runs", table(columns, runs.slice(0, shown).map(row), "No run has been started, or none is kept.", true),
    runs.length > shown && h("p", { class: "quiet" }, `The newest ${shown} of ${runs.length} are shown.`));
}

/**
 * Fills box with the runs or the members of a template.
 * @param {Element} box @param {any} w @param {AbortSignal} signal
 */
export async function showChildren(box, w, signal) {
  const card = isSystem(w) ? membersCard(w, await readMembers(w.workload_id, signal))
    : historyCard(await readRuns(w.workload_id, signal), !!w.template.cron);
  if (!signal.aborted) replace(box, card);
}

function membersCard(w, members) {
  const own = members.filter((m) => m.owner === w.workload_id);
  const done = own.filter((m) => (w.kind === "job" ? m.job_result?.succeeded : m.status === "Running")).length;
  const text = `${done} of ${own.length} ${w.kind === "job" ? "have succeeded" : "run"}. `
    + "The tab Placement says which nodes get a member. ";
  const update = w.kind === "system" && ["Updates: ", h("a", { href: "#/groups/" + w.workload_id }, "group " + w.workload_id)];
  return card("Members, one on each node that matches", h("p", {}, text, update), memberTable(own));
}

/** @param {any} r answer to a call that starts a run */
export const runStarted = (r) => (r.unchanged ? `The key has started ${r.run_id} before.` : `Run ${r.run_id} is started.`);

/**
 * A form that starts a run of a parameterized job.
 * @param {any} w with its spec @param {(done: (r: any) => string, fn: () => Promise<any>) => Promise<void>} act
 */
export function dispatchCard(w, act) {
  const p = w.spec?.job?.parameterized || {}, at = "/workloads/" + encodeURIComponent(w.workload_id) + "/runs";
  const field = (x) => h("label", {}, x.name + (x.required ? " (required)" : ""),
    h("input", { id: "param-" + x.name, placeholder: x.default, required: !!x.required, autocomplete: "off" }));
  const needed = p.input === "required";
  const input = p.input !== "forbidden" && h("textarea", { id: "run-input", required: needed, class: "short" });
  const key = h("input", { id: "run-key", autocomplete: "off", maxLength: 128 });
  const start = h("button", { class: "main" }, "Start a run");
  async function submit(e) {
    e.preventDefault();
    start.disabled = true;
    /** @type {Record<string, string>} */
    const parameters = {};
    for (const x of p.parameters || []) {
      const value = form.elements["param-" + x.name].value;
      if (value !== "") parameters[x.name] = value;
    }
    const body = { parameters, input: input ? input.value : "", key: key.value.trim() };
    await act(runStarted, () => post(at, body));
    start.disabled = false;
  }
  const form = h("form", { onsubmit: submit }, h("div", { class: "filters" }, (p.parameters || []).map(field)),
    input && h("label", { class: "quiet" }, needed ? "Input (required)" : "Input", input),
    h("div", { class: "filters" }, h("label", {}, "Key: the same key starts one run", key), start));
  return card("Start a run", form);
}
