// @ts-check
// One group: its members, how many it has, and its rolling update.
import { get, permissions, post, query } from "./api.js";
import { card, clock, confirmed, facts, h, int, nodeLink, replace, table, toast, workloadLink } from "./dom.js";
import { ended, runsCard } from "./job.js";
import { refresh } from "./live.js";

const most = 1000; // the largest number of members that a group can have

const shortRevision = (id) => h("span", { class: "mono short", title: id }, (id || "–").slice(0, 11));

/**
 * The members of a group or of a system workload as a table.
 * @param {any[]} members @param {any} [update] the rollout of the group, while it is under way
 */
export function memberTable(members, update) {
  const turn = (m) => [m.state, m.surge && "extra", m.canary && "canary"].filter(Boolean).join(", ");
  const turns = new Map((update?.members || []).map((m) => [m.workload_id, turn(m)]));
  const row = (w) => [
    workloadLink(w.workload_id), [ended(w), w.health && w.health !== "healthy" && " " + w.health],
    nodeLink(w.assigned_node_id), shortRevision(w.revision_id), ...(update ? [turns.get(w.workload_id) || "–"] : []),
    workloadLink(w.workload_id, "Logs", "Logs"), w.status === "Running" ? "" : w.message,
  ];
  const columns = ["Member", "State", "Node", "Revision", ...(update ? ["Update"] : []), "Output", "Message"];
  return table(columns, members.map(row), "There are no members.", true);
}

/** Reads the members of a group, by number. @param {string} name @param {AbortSignal} signal @returns {Promise<any[]>} */
export async function readMembers(name, signal) {
  const r = await get("/workloads" + query({ group: name, page_size: most }), signal);
  const list = r.workloads || [];
  return list.sort((a, b) => a.workload_id.localeCompare(b.workload_id, "en", { numeric: true }));
}

/** Reports whether a workload is a member that the count of its group created. @param {any} w */
export const countable = (w) => !w.owner && !w.surge && !["job", "system"].includes(w.kind) && !!w.group
  && w.workload_id.startsWith(w.group + "-") && /^\d+$/.test(w.workload_id.slice(w.group.length + 1));

/** @param {HTMLElement} main @param {AbortSignal} signal @param {string} name */
export async function group(main, signal, name) {
  const head = h("div", { class: "actions" }), scale = h("div", {}), body = h("div", {});
  const wanted = h("input", { type: "number", id: "count", min: "0", max: String(most), required: true, size: 5 });
  /** @type {any[]} */
  let counted = [];
  let now = 0, shown = false;
  const rights = permissions(["deploy"], signal);
  const form = h("form", { class: "filters", onsubmit: submit }, h("label", {}, "Members", wanted),
    h("button", { class: "main" }, "Scale"));
  const rule = h("p", { class: "quiet" });
  const scaleCard = card("Scale", form, rule);
  replace(main, h("h1", {}, "Group " + name), head, scale, body);

  async function act(done, fn) {
    try {
      const r = await fn();
      toast(r.unchanged ? "Nothing changed." : done);
    } catch (/** @type {any} */ e) {
      toast(e.message, true);
    }
    await show();
  }

  async function submit(e) {
    e.preventDefault();
    const count = Number(wanted.value);
    const number = (w) => Number(w.workload_id.slice(name.length + 1));
    const gone = (count === 0 ? counted.slice(1) : counted.filter((w) => number(w) >= count)).map((w) => w.workload_id);
    if (gone.length > 0 || count === 0 && now > 0) {
      const note = [gone.length > 0 && h("p", {}, "These members are deleted. Their managed volumes follow their retain policy."),
      h("ul", {}, gone.slice(0, 20).map((id) => h("li", {}, id))), gone.length > 20 && h("p", {}, `and ${gone.length - 20} more`),
      count === 0 && h("p", {}, `${counted[0].workload_id} is kept, stopped.`)];
      if (!await confirmed(`Scale ${name} from ${now} to ${count}?`, note, "Scale down", true)) return;
    }
    wanted.dataset.was = wanted.value;
    const done = `${name} gets ${count} ${count === 1 ? "member" : "members"}.`;
    await act(done, () => post("/groups/" + encodeURIComponent(name) + "/scale", { count }));
  }

  const rollout = (action, done) => act(done, () => post("/rollouts/" + encodeURIComponent(name), { action }));
  async function undo() {
    const note = h("p", {}, "The members return to the previous specification, a few at a time.");
    if (await confirmed(`Undo the update of ${name}?`, note, "Undo", true)) await rollout("undo", "The update is undone.");
  }

  async function abort() {
    const note = h("p", {}, "The members return to the previous specification, and extra members are deleted.");
    if (await confirmed(`Abort the update of ${name}?`, note, "Abort", true)) await rollout("abort", "The update goes back.");
  }

  function rolloutCard(r, changes) {
    const waits = r.phase === "AwaitPromotion";
    return card("Update", facts([
      ["Phase", r.reverting ? r.phase + ", back to the previous specification" : r.phase], ["Why", r.reason],
      ["At a time", r.update?.max_parallel && String(r.update.max_parallel)], ["Order", r.update?.order],
      ["Canaries", r.update?.canary && String(r.update.canary)],
      ["Began", clock(r.started_at)], ["Ended", r.ended_at && clock(r.ended_at)], ["By", r.by],
    ]), changes && h("div", { class: "actions" },
      waits && h("button", { class: "main", onclick: () => rollout("promote", "The update goes on.") }, "Promote"),
      (r.phase === "Running" || waits) && h("button", { onclick: () => rollout("pause", "The update is paused.") }, "Pause"),
      r.phase === "Paused" && h("button", { onclick: () => rollout("resume", "The update goes on.") }, "Resume"),
      r.can_undo && !waits && h("button", { class: "danger", onclick: undo }, "Undo …"),
      waits && h("button", { class: "danger", onclick: abort }, "Abort …")));
  }

  // readRollout reads the rolling update of the group. It makes no request if there cannot be a rolling update:
  // all members have the same specification, and it was never changed or has no update strategy.
  async function readRollout(first, members) {
    const id = first.kind === "system" ? first.owner : counted[0]?.workload_id;
    if (!id) return null;
    const { workload: w } = await get("/workloads/" + encodeURIComponent(id), signal);
    const all = [...counted, ...members.filter((x) => x.surge)];
    const same = new Set(all.map((x) => x.revision_id)).size < 2;
    if (same && (int(w.revision_number) < 2 || !w.spec?.update && w.kind !== "system")) return null;
    return get("/rollouts/" + encodeURIComponent(name), signal).catch((e) => {
      if (e.status !== 404) throw e;
      return null;
    });
  }

  async function show() {
    const members = await readMembers(name, signal);
    if (members.length === 0) {
      replace(head);
      replace(scale);
      shown = false;
      replace(body, card("", h("p", { class: "empty" }, `No workload is in the group ${name}.`)));
      return;
    }
    const first = members[0];
    const [changes] = await rights(first.namespace);
    counted = members.filter((w) => countable(w) && w.desired_state !== "Deleted" && w.namespace === first.namespace);
    now = counted.length === 1 && counted[0].desired_state === "Stopped" ? 0 : counted.length;
    const r = await readRollout(first, members);
    const running = members.filter((w) => w.status === "Running").length, jobs = members.filter((w) => w.kind === "job");
    replace(head, jobs.length < members.length && `${running} of ${members.length} run`,
      first.owner && h("span", {}, "Made by ", workloadLink(first.owner)));
    const auto = first.autoscale?.settings;
    const next = auto
      ? `The autoscaler goes on from this number, from ${auto.min} to ${auto.max}; 0 stops all members and pauses it.`
      : "The next apply of a file with a count sets the number again.";
    rule.textContent = "New members get the specification of the first one. " + next;
    const scalable = counted.length > 0 && changes;
    if (scalable !== shown) replace(scale, scalable && scaleCard);
    shown = scalable;
    // The field keeps what a person types.
    if (wanted.dataset.was === wanted.value || !wanted.dataset.was) wanted.value = wanted.dataset.was = String(now);
    replace(body, r && rolloutCard(r, changes),
      jobs.length < members.length && card("Members", memberTable(members.filter((w) => w.kind !== "job"),
        r && r.phase !== "Completed" ? r : undefined)),
      jobs.length > 0 && runsCard(name, jobs, false));
  }
  await refresh(show, signal, { about: (e) => e.workload_id });
}
