// One workload: what it is, why it is there, what happened, what it says.
import { call, del, fetchLines, get, post, query, stream } from "./api.js";
import { live, refresh } from "./app.js";
import { card, clock, confirmed, facts, h, int, nodeLink, replace, state, table, timeline, toast } from "./dom.js";

const tabs = ["State", "Timeline", "Placement", "Logs", "Exec", "Revisions", "Specification"];

export async function workload(main, signal, id) {
  const at = "/workloads/" + encodeURIComponent(id);
  let tab = tabs[0], inner = new AbortController(), seen = null, drawn = () => {};
  const head = h("div", {}), body = h("div", { role: "tabpanel", id: "panel", tabIndex: 0 });
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": "About this workload", onkeydown: (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (step) { open(tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length]); bar.querySelector("[aria-selected=true]").focus(); }
  } }, tabs.map((t) => h("button", { type: "button", role: "tab", "aria-controls": "panel", onclick: () => open(t) }, t)));
  replace(main, h("h1", {}, id), head, bar, body);
  signal.addEventListener("abort", () => inner.abort());

  async function act(done, fn) {
    try {
      const r = await fn();
      if (r.success === false || r.accepted === false) toast(r.error_message || r.reason, true);
      else toast(done);
    } catch (e) { toast(e.message, true); }
    await draw();
  }
  const desire = (to) => post("/workloads", { workload_id: id, desired_state: to });
  async function draw() {
    const { workload: w } = await get(at, signal);
    seen = w;
    const stopped = w.desired_state === "Stopped";
    replace(head, h("div", { class: "actions" }, state(w.status),
      w.message && h("span", { class: "quiet" }, w.message),
      h("span", { style: { marginLeft: "auto" } }),
      stopped ? h("button", { onclick: () => act(`${id} starts.`, () => desire("Running")) }, "Start") : h("button", { onclick: () => act(`${id} stops.`, () => desire("Stopped")) }, "Stop"),
      h("button", { onclick: () => act(`${id} is tried again.`, () => call("POST", at + "/retry")) }, "Retry"),
      h("button", { class: "danger", onclick: async () => {
        if (await confirmed(`Delete ${id}?`, h("p", {}, "It is stopped and removed from its node. Its managed volumes follow their retain policy."), "Delete", true)) await act(`${id} is being deleted.`, () => del(at));
      } }, "Delete …")));
    drawn(w);
    return w;
  }

  function open(t) {
    tab = t;
    inner.abort();
    inner = new AbortController();
    drawn = () => {};
    bar.querySelectorAll("button").forEach((b) => { b.setAttribute("aria-selected", String(b.textContent === t)); b.tabIndex = b.textContent === t ? 0 : -1; });
    replace(body, h("p", { class: "quiet" }, "Reading …"));
    const shows = { State: showState, Timeline: showTimeline, Placement: showPlacement, Logs: showLogs, Exec: showSession, Revisions: showRevisions, Specification: showSpec };
    const s = inner.signal;
    shows[t](s).catch((e) => { if (!s.aborted) replace(body, h("p", { class: "err" }, e.message)); });
  }

  async function showState() {
    drawn = (w) => {
      const why = w.reason || {};
      replace(body, h("div", { class: "grid" },
        card("State", facts([["Desired", w.desired_state], ["State", state(w.status)], ["Why", [why.code, why.message].filter(Boolean).join(": ")], ["Since", why.last_transition && clock(why.last_transition)],
          ["Node", nodeLink(w.assigned_node_id)], ["Taken by the agent", w.assignment_acknowledged ? "yes" : "not yet"], ["Health", w.health && (w.health === "healthy" ? w.health : `${w.health}, and so not in DNS`)], ["Addresses", (w.addresses || []).join(", ")],
          ["Ports", (w.ports || []).map((p) => `${p.host_port || "–"} → ${p.container_port}/${p.protocol || "tcp"} ${p.name || ""}`.trim()).join(", ")]])),
        card("Attempts", facts([["Attempts", `${int(w.retry_attempts)}${int(w.retry_max_attempts) ? " of " + w.retry_max_attempts : ""}`], ["Next", w.retry_next_at && clock(w.retry_next_at)], ["Failure", w.failure_reason]])),
        card("Identity", facts([["Type", w.type], ["Image or source", w.image_or_source], ["Revision", h("span", { class: "mono" }, w.revision_id)], ["Caller's revision", w.caller_revision_id], ["Generation", w.generation && `${w.generation.incarnation}/${w.generation.sequence}`],
          ["Namespace", w.namespace], ["Group", w.group], ["Priority", int(w.priority) ? String(w.priority) : ""], ["Exclusive", w.exclusive && "yes: never on two machines"], ["Needs labels", Object.entries(w.labels || {}).map(([k, v]) => `${k}=${v}`).join(" ")], ["Created", clock(w.created_at)]]))),
      (w.last_actions || []).length > 0 && card("What the agent had done when the last order timed out", actionTable(w.last_actions)));
    };
    if (seen) drawn(seen);
  }

  async function showTimeline(s) {
    const list = (await fetchLines("/events" + query({ workload_id: id, tail: 200 }), s)).reverse();
    const events = h("div", {}), actions = h("div", {});
    const drawEvents = () => replace(events, timeline(list));
    replace(body, card("Events", events), card("What the agent did", actions));
    drawEvents();
    live((e) => { if (e.workload_id === id && !list.some((x) => x.seq === e.seq)) { list.unshift(e); drawEvents(); } }, s);
    try {
      const r = await get(at + "/actions?limit=50", s);
      replace(actions, actionTable(r.actions || []));
    } catch (e) { if (!s.aborted) replace(actions, h("p", { class: "empty" }, e.message)); }
  }

  async function showPlacement(s) {
    await refresh(async () => {
      const r = await get(at + "/why", s);
      if (s.aborted) return;
      replace(body, card("Why", h("p", {}, r.assigned_node_id ? ["It is on ", nodeLink(r.assigned_node_id), "."] : r.chosen_node_id ? ["It would go to ", nodeLink(r.chosen_node_id), "."] : "No node takes it."),
        (r.reason_code || r.reason_message) && h("p", {}, [r.reason_code, r.reason_message].filter(Boolean).join(": ")), r.hint && h("p", {}, "Next: ", h("code", {}, r.hint))),
      (r.counts || []).length > 0 && card("What stands against it", table([{ title: "Nodes", num: true }, "Filter", "Reason"], r.counts.map((c) => [String(c.nodes), c.filter, c.reason]), "")),
      card("Node by node", verdicts(r.nodes || [], r.assigned_node_id)));
    }, s, { about: (e) => e.workload_id === id || e.node_id });
  }

  async function showLogs(s) {
    const out = h("pre", { class: "log", tabIndex: 0, role: "log", "aria-label": "Output of " + id }), note = h("p", { class: "quiet" }, "Waiting for output …");
    let follow = true, from = "tail_lines=500";
    out.addEventListener("scroll", () => { follow = out.scrollTop + out.clientHeight > out.scrollHeight - 20; });
    replace(body, note, out);
    const decode = new TextDecoder();
    let size = 0;
    await stream(() => at + "/logs?follow=true&" + from, (chunk) => {
      // A stream that breaks goes on from here; a line of the same second may come twice.
      if (int(chunk.at_unix_nanos)) from = "since_unix_seconds=" + Math.floor(int(chunk.at_unix_nanos) / 1e9);
      const text = decode.decode(Uint8Array.from(atob(chunk.data || ""), (c) => c.charCodeAt(0)), { stream: true });
      note.textContent = "Live; scroll up to hold it still.";
      out.append(text);
      size += text.length;
      while (size > 500000 && out.firstChild) { size -= out.firstChild.length; out.firstChild.remove(); }
      if (follow) out.scrollTop = out.scrollHeight;
    }, s, { once: true, onState: (why) => { note.textContent = why ? `${why}; it is tried again.` : "Waiting for output …"; } });
    if (!s.aborted) note.textContent = "The output has ended.";
  }

  async function showSession(s) {
    const [w, { showExec }] = await Promise.all([draw(), import("./exec.js")]);
    if (!s.aborted) showExec(body, s, w);
  }

  async function showRevisions(s) {
    const { showHistory } = await import("./history.js");
    await refresh(async () => { if (!s.aborted) await showHistory(body, s, id, (number) => act(`Revision ${number} of ${id} is applied again.`, () => post(at + "/rollback", { number }))); }, s, { about: (e) => e.workload_id === id, every: 60000 });
  }

  async function showSpec(s) {
    const w = await draw();
    if (!s.aborted) replace(body, card("Specification", h("p", { class: "quiet" }, "Secrets are shown as ***. Deploy a changed file to change it; the plan there shows the difference field by field."), h("pre", { tabIndex: 0 }, JSON.stringify(w.spec || {}, null, 2))));
  }
  open(tab);
  await refresh(async () => {
    try { await draw(); } catch (e) {
      if (e.status !== 404 || !seen) throw e;
      replace(head, state("Deleted")); // what the tab shows of it stays
    }
  }, signal, { about: (e) => e.workload_id === id });
}

// actionTable lists tasks of an agent.
function actionTable(list) {
  return table(["Task", "Action", "State", "Began", "Took", "Error"], list.map((a) => [h("span", { class: "mono" }, a.task_id), a.action_type, state(a.status), clock(a.created_at),
    a.started_at && a.ended_at ? ((Date.parse(a.ended_at) - Date.parse(a.started_at)) / 1000).toFixed(1) + " s" : "–", a.error]), "The agent keeps no history of it.");
}

// verdicts of the nodes, best first.
export function verdicts(list, here) {
  return table(["Node", "Verdict", { title: "Score", num: true }, "Why"], list.slice(0, 200).map((n) => [nodeLink(n.node_id),
    n.node_id === here ? state("Running", "here") : n.feasible ? state("Ready", "fits") : state("Failed", "no"),
    n.feasible ? Number(n.score || 0).toFixed(3) : "–", n.feasible ? (n.score_parts || []).join(" ") : [n.filter, n.reason].filter(Boolean).join(": ")]), "There are no nodes.");
}
