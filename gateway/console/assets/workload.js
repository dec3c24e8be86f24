// @ts-check
// One workload: state, timeline, placement, logs, sessions, revisions, specification.
import { call, del, fetchLines, get, permissions, post, query, stream } from "./api.js";
import {
  card, clock, confirmed, dataLines, facts, groupLink, h, int, labelTexts, nodeLink, reasonText, replace, state, table, timeline,
  toast, workloadLink,
} from "./dom.js";
import { countable, readMembers } from "./group.js";
import { ended, outputCard, resultCard, runsCard } from "./job.js";
import { live, refresh } from "./live.js";
import { verdicts } from "./placement.js";
import { dispatchCard, isSystem, isTemplate, runStarted, scheduleCard, showChildren } from "./template.js";
import { usageCard } from "./usage.js";

const tabs = ["State", "Timeline", "Placement", "Logs", "Exec", "Revisions", "Specification"];
const maxLog = 500000; // maximum number of characters of the log that the page keeps

/** @param {HTMLElement} main @param {AbortSignal} signal @param {string} id */
export async function workload(main, signal, id) {
  const at = "/workloads/" + encodeURIComponent(id);
  const wanted = new URLSearchParams(location.hash.split("?")[1] || "").get("tab");
  let tab = tabs.find((t) => t === wanted) || tabs[0], inner = new AbortController();
  /** @type {any} */
  let seen = null;
  // onState is called with each newer state of the workload; the tab that is open sets it.
  /** @type {(w: any) => void} */
  let onState = () => { };
  const rights = permissions(["deploy", "exec"], signal);
  const head = h("div", {}), body = h("div", { role: "tabpanel", id: "panel", tabIndex: 0 });
  const button = (t) => h("button", { type: "button", role: "tab", "aria-controls": "panel", onclick: () => open(t) }, t);
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": "About this workload", onkeydown: stepTab },
    tabs.map(button));
  replace(main, h("h1", {}, id), head, bar, body);
  signal.addEventListener("abort", () => inner.abort());

  function stepTab(e) {
    const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const shown = [...bar.children].filter((b) => !b.hidden).map((b) => b.textContent);
    open(shown[(shown.indexOf(tab) + step + shown.length) % shown.length]);
    bar.querySelector("[aria-selected=true]").focus();
  }

  async function act(done, fn) {
    try {
      const r = await fn();
      if (r.success === false || r.accepted === false) toast(r.error_message || r.reason, true);
      else toast(typeof done === "function" ? done(r) : r.unchanged && r.reason || done);
    } catch (/** @type {any} */ e) {
      toast(e.message, true);
    }
    await draw();
  }
  const desire = (to) => post("/workloads", { workload_id: id, desired_state: to });
  const start = () => act(`${id} starts.`, () => desire("Running"));
  const stop = () => act(`${id} stops.`, () => desire("Stopped"));
  const suspend = () => act(`${id} is suspended: no run starts by the schedule.`, () => desire("Stopped"));
  const resume = () => act(`${id} is resumed.`, () => desire("Running"));
  const trigger = () => act(runStarted, () => post(at + "/runs"));
  const retry = () => act(`${id} is tried again.`, () => call("POST", at + "/retry"));
  const again = () => act(`${id} is restarted.`, () => call("POST", at + "/retry?restart=true"));
  async function remove() {
    let text = "It is stopped and removed from its node.";
    if (seen?.template) text = "Its runs are deleted too. Runs that are active are stopped.";
    else if (isSystem(seen)) text = "All its members are stopped and removed from their nodes.";
    const volumes = h("input", { type: "checkbox" }), data = h("div", { role: "status" });
    volumes.addEventListener("change", show);
    async function show() {
      const keep = !volumes.checked;
      let lines = ["The scheduler cannot tell which data goes."];
      try {
        const r = await post("/plan", { workloads: [{ workload_id: id, desired_state: "deleted" }], keep_volumes: keep });
        lines = (r.workloads || []).flatMap(dataLines);
      } catch { /* the line above says it */ }
      if (keep === !volumes.checked) replace(data, lines.map((l) => h("p", {}, l)));
    }
    await show();
    const body = h("div", {}, h("p", {}, text), data, h("label", {}, volumes, " Delete its volumes too"));
    if (!await confirmed(`Delete ${id}?`, body, "Delete", true)) return;
    await act(`${id} is being deleted.`, () => del(at + (volumes.checked ? "" : "?keep_volumes=true")));
  }

  function buttons(w) {
    const stopped = w.desired_state === "Stopped", finished = !!w.job_result;
    const remover = h("button", { class: "danger", onclick: remove }, "Delete …");
    if (w.template?.cron) {
      return [h("button", { onclick: trigger }, "Run now"),
      h("button", { onclick: stopped ? resume : suspend }, stopped ? "Resume" : "Suspend"), remover];
    }
    const starter = !finished && h("button", { onclick: stopped ? start : stop }, stopped ? "Start" : "Stop");
    if (isTemplate(w)) return [starter, remover];
    return [
      countable(w) && h("a", { class: "button", href: "#/groups/" + encodeURIComponent(w.group) }, "Scale …"),
      starter, ["Pending", "RetryPending", "Failed"].includes(w.status) && !finished && h("button", { onclick: retry }, "Retry"),
      h("button", { onclick: again }, finished ? "Run again" : "Restart"), remover,
    ];
  }

  // hasTab reports whether a workload has a tab: a template, which never runs itself, has no logs and no
  // sessions.
  function hasTab(w, t, execs) {
    if (t === "Exec") return execs && !isTemplate(w);
    return t === "Logs" ? !isTemplate(w) : t !== "Placement" || !w.template;
  }

  // draw reads the workload and shows its state above the tabs.
  async function draw() {
    const { workload: w } = await get(at, signal);
    seen = w;
    const [deploys, execs] = await rights(w.namespace);
    for (const b of bar.children) b.hidden = !hasTab(w, b.textContent, execs);
    if (!signal.aborted && !hasTab(w, tab, execs)) open("State");
    replace(head, h("div", { class: "actions" }, ended(w),
      w.message && w.message.toLowerCase() !== w.status.toLowerCase() && h("span", { class: "quiet" }, w.message),
      h("span", { style: { marginLeft: "auto" } }), deploys && buttons(w)));
    onState(w);
    return w;
  }

  /** @type {Record<string, (s: AbortSignal) => Promise<void>>} */
  const shows = {
    State: showState, Timeline: showTimeline, Placement: showPlacement, Logs: showLogs, Exec: showSession,
    Revisions: showRevisions, Specification: showSpec,
  };
  function open(t) {
    tab = t;
    inner.abort();
    inner = new AbortController();
    onState = () => { };
    bar.querySelectorAll("button").forEach((b) => {
      const chosen = b.textContent === t;
      b.setAttribute("aria-selected", String(chosen));
      b.tabIndex = chosen ? 0 : -1;
    });
    replace(body, h("p", { class: "quiet" }, "Reading …"));
    const s = inner.signal;
    shows[t](s).catch((e) => { if (!s.aborted) replace(body, h("p", { class: "err" }, e.message)); });
  }

  async function showState(s) {
    const cards = h("div", {}), form = h("div", {}), used = h("div", {}), runs = h("div", {}), actions = h("div", {});
    let reading = false;
    const readRuns = (group) => refresh(async () => {
      const r = await get("/workloads" + query({ group, kind: "job", page_size: 200 }), s);
      if (!s.aborted) replace(runs, runsCard(group, r.workloads || [], !!r.next_page_token));
    }, s, { about: (e) => e.workload_id });
    const readChildren = () => refresh(() => showChildren(runs, seen, s), s, { about: (e) => e.workload_id?.startsWith(id) });
    // showForm is called once, so that the form keeps its values.
    async function showForm(w) {
      const [deploys] = await rights(w.namespace);
      if (!s.aborted && deploys) replace(form, dispatchCard(w, act));
    }
    onState = (w) => {
      const template = isTemplate(w);
      replace(cards,
        h("div", { class: "grid" }, resultCard(w), w.template && scheduleCard(w), stateCard(w),
          !template && attemptsCard(w), identityCard(w)), outputCard(w));
      const late = w.last_actions || [];
      replace(actions, late.length > 0
        && card("What the agent had done when the last order timed out", actionTable(late)));
      if (!used.firstChild && !template && w.assigned_node_id) replace(used, usageCard(at, s));
      if (reading) return;
      reading = true;
      replace(body, cards, form, used, runs, actions);
      if (w.template && !w.template.cron) showForm(w);
      if (template) readChildren();
      else if (w.kind === "job" && w.group) readRuns(w.group);
    };
    if (seen) onState(seen);
  }

  async function showTimeline(s) {
    const list = (await fetchLines("/events" + query({ workload_id: id, tail: 200 }), s)).reverse();
    const events = h("div", {}), actions = h("div", {}), placed = !seen || !isTemplate(seen);
    const drawEvents = () => replace(events, timeline(list));
    replace(body, card("Events", events), placed && card("What the agent did", actions));
    drawEvents();
    live((e) => {
      if (e.workload_id !== id || list.some((x) => x.seq === e.seq)) return;
      list.unshift(e);
      drawEvents();
    }, s);
    if (!placed) return;
    try {
      const r = await get(at + "/actions?limit=50", s);
      replace(actions, actionTable(r.actions || []));
    } catch (/** @type {any} */ e) {
      if (!s.aborted) replace(actions, h("p", { class: "empty" }, e.message));
    }
  }

  async function showPlacement(s) {
    const place = (r) => {
      if (seen && isSystem(seen)) return "";
      if (r.assigned_node_id) return ["It is on ", nodeLink(r.assigned_node_id), "."];
      if (r.chosen_node_id) return ["It would go to ", nodeLink(r.chosen_node_id), "."];
      return "No node takes it.";
    };
    await refresh(async () => {
      const r = await get(at + "/why", s);
      if (s.aborted) return;
      const counts = (r.counts || []).map((c) => [String(c.nodes), c.filter, c.reason]);
      const reason = reasonText(r.reason_code, r.reason_message);
      replace(body,
        card("Why", place(r) && h("p", {}, place(r)), reason && h("p", {}, reason),
          r.hint && h("p", {}, "Next: ", h("code", {}, r.hint))),
        counts.length > 0 && card("Why nodes are ruled out",
          table([{ title: "Nodes", num: true }, "Filter", "Reason"], counts, "")),
        card("Node by node", verdicts(r.nodes || [], r.assigned_node_id)));
    }, s, { about: (e) => e.workload_id === id || e.node_id });
  }

  async function showLogs(s) {
    const w = await draw().catch((e) => seen || Promise.reject(e));
    if (s.aborted) return;
    if (w.job_result && !w.assigned_node_id) { // the container is gone
      const text = w.job_result.exit?.output ? "The job has ended. Its record keeps the last lines of its output."
        : "The job has ended, and its record keeps no output.";
      replace(body, outputCard(w), h("p", { class: "quiet" }, text));
      return;
    }
    const out = h("pre", { class: "log", tabIndex: 0, role: "log", "aria-label": "Output of " + id });
    const note = h("p", { class: "quiet" }, "Waiting for output …");
    let follow = true, from = "tail_lines=500", size = 0;
    out.addEventListener("scroll", () => { follow = out.scrollTop + out.clientHeight > out.scrollHeight - 20; });
    replace(body, note, out);
    const decoder = new TextDecoder();
    const take = (chunk) => {
      // After an interruption the stream continues from this second, so a line of this second may
      // be shown twice.
      if (int(chunk.at_unix_nanos)) from = "since_unix_seconds=" + Math.floor(int(chunk.at_unix_nanos) / 1e9);
      const bytes = Uint8Array.from(atob(chunk.data || ""), (c) => c.charCodeAt(0));
      const text = decoder.decode(bytes, { stream: true });
      note.textContent = "Live; scroll up to stop following.";
      out.append(text);
      size += text.length;
      while (size > maxLog && out.firstChild) {
        size -= out.firstChild.length;
        out.firstChild.remove();
      }
      if (follow) out.scrollTop = out.scrollHeight;
    };
    const onState = (why) => { note.textContent = why ? `${why}; the page reads the logs again.` : "Waiting for output …"; };
    await stream(() => at + "/logs?follow=true&" + from, take, s, { once: true, onState });
    if (!s.aborted) note.textContent = "The output has ended.";
  }

  async function showSession(s) {
    const [w, { showExec }] = await Promise.all([draw(), import("./exec.js")]);
    if (!s.aborted) showExec(body, s, w);
  }

  async function showRevisions(s) {
    const { showHistory } = await import("./history.js");
    const [deploys] = await rights((seen || await draw()).namespace);
    const rollBack = deploys && ((number) => act(`Revision ${number} of ${id} is applied again.`,
      () => post(at + "/rollback", { number })));
    await refresh(async () => {
      if (!s.aborted) await showHistory(body, s, id, rollBack);
    }, s, { about: (e) => e.workload_id === id, every: 60000 });
  }

  async function showSpec(s) {
    const w = await draw();
    if (s.aborted) return;
    const text = "Secrets are shown as ***. To change it, deploy a changed file; the plan shows the difference field by field.";
    replace(body, card("Specification", h("p", { class: "quiet" }, text),
      h("pre", { tabIndex: 0 }, JSON.stringify(w.spec || {}, null, 2))));
  }

  open(tab);
  await refresh(async () => {
    try {
      await draw();
    } catch (/** @type {any} */ e) {
      if (e.status !== 404) throw e;
      if (!seen) {
        if ((await readMembers(id, signal)).length === 0) throw e;
        location.replace("#/groups/" + encodeURIComponent(id)); // a job with completions is a group of jobs
        return;
      }
      replace(head, state("Deleted")); // the open tab keeps its content, such as the last lines of the log
    }
  }, signal, { about: (e) => e.workload_id === id });
}

function stateCard(w) {
  const why = w.reason || {};
  const local = (a) => a && (a.startsWith("127.") || a === "::1");
  const port = (p) => {
    const host = `${p.address || ""} ${p.host_port || "–"} → ${p.container_port}/${p.protocol || "tcp"} ${p.name || ""}`;
    if (p.mode === "ingress") return host.trim() + " (on every node)";
    return host.trim() + (local(p.address) ? " (on the node only, not in DNS)" : "");
  };
  return card("State", facts([
    ["Desired", w.desired_state], ["State", state(w.status)], ["Why", reasonText(why.code, why.message)],
    ["Since", why.last_transition && clock(why.last_transition)], ["Node", !isTemplate(w) && nodeLink(w.assigned_node_id)],
    ["Accepted by the agent", !isTemplate(w) && !w.job_result && (w.assignment_acknowledged ? "yes" : "not yet")],
    ["Health", w.health && (w.health === "healthy" ? w.health : `${w.health}, and therefore not in DNS`)],
    ["Addresses", (w.addresses || []).join(", ")], ["Ports", (w.ports || []).map(port).join(", ")],
  ]));
}

function attemptsCard(w) {
  if (!int(w.retry_attempts) && !w.retry_next_at && !w.failure_reason) return null;
  const most = int(w.retry_max_attempts) ? " of " + w.retry_max_attempts : "";
  return card("Attempts", facts([
    ["Attempts", int(w.retry_attempts) + most], ["Next", w.retry_next_at && clock(w.retry_next_at)],
    ["Failure", w.failure_reason],
  ]));
}

function identityCard(w) {
  return card("Identity", facts([
    ["Type", w.type], ["Kind", w.kind || "service"], ["Image or source", w.image_or_source],
    ["Revision", h("span", { class: "mono" }, w.revision_id)],
    ["Caller's revision", w.caller_revision_id],
    ["Generation", w.generation && `${w.generation.incarnation}/${w.generation.sequence}`],
    ["Namespace", w.namespace], ["Group", groupLink(w.group)], ["Made by", w.owner && workloadLink(w.owner)],
    ["Priority", int(w.priority) ? String(w.priority) : ""],
    ["Exclusive", w.exclusive && "yes: never on two nodes at once"], ["Needs labels", labelTexts(w.labels).join(" ")],
    ["Created", clock(w.created_at)],
  ]));
}

// actionTable shows a table of the tasks that an agent has carried out.
function actionTable(list) {
  function took(a) {
    if (!a.started_at || !a.ended_at) return "–";
    return ((Date.parse(a.ended_at) - Date.parse(a.started_at)) / 1000).toFixed(1) + " s";
  }
  const row = (a) => [
    h("span", { class: "mono" }, a.task_id), a.action_type, state(a.status), clock(a.created_at), took(a), a.error,
  ];
  return table(["Task", "Action", "State", "Began", "Took", "Error"], list.map(row), "The agent has recorded no actions.");
}
