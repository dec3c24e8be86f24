// Deploy: a file, what it would do, and then its way to running.
import { get, post, unsure } from "./api.js";
import { refresh } from "./app.js";
import { card, confirmed, h, nodeLink, replace, state, table, toast, workloadLink } from "./dom.js";
import { verdicts } from "./workload.js";

const example = `id: hello
resources: {cpu: 100m, memory: 64Mi}
container:
  image: persys/hello:demo
  ports: ["8080:8080"]
`;

export async function deploy(main, signal) {
  const text = h("textarea", { id: "spec", spellcheck: "false", autocapitalize: "off", "aria-describedby": "spec-help" });
  text.value = sessionStorage.getItem("draft") || example;
  const file = h("input", { type: "file", accept: ".yaml,.yml,.json", "aria-label": "Read a file", onchange: async () => {
    if (file.files[0]) { text.value = await file.files[0].text(); changed(); }
  } });
  const out = h("div", { "aria-live": "polite" });
  const apply = h("button", { class: "main", disabled: true, onclick: send }, "Apply");
  let planned = "", ends = [];
  // A Compose file is taken as it is; without a name of its own it needs one.
  const name = h("input", { id: "stack", type: "text", autocapitalize: "off", spellcheck: "false", oninput: changed });
  const named = h("p", { hidden: true }, h("label", { for: "stack" }, "Name of the stack "), name);
  const compose = () => /^services\s*:/m.test(text.value) && !/^(id|workload_id|container|compose|vm|spec)\s*:/m.test(text.value);
  const body = () => ({ file: text.value, ...(compose() && name.value ? { name: name.value } : {}) });
  const asking = () => JSON.stringify(body());
  function changed() {
    named.hidden = !compose();
    sessionStorage.setItem("draft", text.value);
    apply.disabled = asking() !== planned;
  }
  text.addEventListener("input", changed);
  replace(main, h("h1", {}, "Deploy"),
    card("", h("p", {}, h("label", { for: "spec" }, "Specification"), h("span", { class: "quiet", id: "spec-help" }, " – YAML or JSON, one document or several, or a Compose file as it is")), text, named,
      h("div", { class: "actions", style: { marginTop: ".75rem" } }, file, h("button", { onclick: plan }, "Show the plan"), apply)), out);
  changed();

  const said = (title, lines) => card(title, h("ul", { class: "err" }, lines.map((line) => h("li", {}, line))));

  function fault(e, sent) {
    replace(out, said(sent && unsure(e) ? "It may have been applied, or not: look, or apply it again" : "Nothing has been changed", e.message.split("\n")));
    const line = /(?:^|\s)(\d+):(\d+):/.exec(e.message);
    if (!line) return;
    const before = text.value.split("\n").slice(0, Number(line[1]) - 1).join("\n").length + (Number(line[1]) > 1 ? 1 : 0);
    text.focus();
    text.setSelectionRange(before, before + (text.value.split("\n")[Number(line[1]) - 1] || "").length);
  }

  async function plan() {
    const asked = asking();
    let r;
    try { r = await post("/plan", body()); } catch (e) { planned = ""; changed(); fault(e); return; }
    const list = r.workloads || [];
    const refused = list.some((w) => w.action === "refused");
    planned = refused || r.frozen ? "" : asked;
    ends = list.filter((w) => ["delete", "stop"].includes(w.action)).map((w) => `${w.action} ${w.workload_id}`);
    changed();
    replace(out, r.frozen && card("An apply would be refused now", h("p", { class: "err" }, r.frozen)),
      card("The plan", table(["Workload", "Action", "Would run on", "What changes"], list.map((w) => [w.workload_id, h("div", {}, state(w.action), w.at_a_time ? h("div", { class: "quiet" }, `in turns, ${w.at_a_time} at a time`) : ""), nodeLink(w.node_id),
        w.reason ? h("span", { class: w.action === "delete" ? "" : "err" }, w.reason) : h("div", {}, (w.changes || []).map((c) => h("div", {}, h("span", { class: "mono" }, c.field), c.before || c.after ? `: ${c.before || "–"} → ${c.after || "–"}` : "")))]), "")),
      list.filter((w) => (w.nodes || []).length > 0).map((w) => h("details", { class: "card" }, h("summary", {}, `Placement of ${w.workload_id}, node by node`), verdicts(w.nodes, w.present_node_id))));
  }

  async function send() {
    if (ends.length && !await confirmed("Apply this plan?", h("ul", {}, ends.map((e) => h("li", {}, e))), "Apply", true)) return;
    apply.disabled = true;
    let r;
    try { r = await post("/apply", body()); } catch (e) { changed(); fault(e, true); return; }
    const results = r.results || [];
    const bad = results.filter((x) => !x.success).map((x) => x.error_message);
    const ids = results.filter((x) => x.success).flatMap((x) => x.workload_ids || []);
    if (ids.length === 0) fault(new Error(bad.join("\n")));
    else follow(ids, [bad.length > 0 && said(`${bad.length} of ${results.length} refused; the others have been applied`, bad),
      results.some((x) => x.rollout) && h("p", {}, "Members of a group change in turns and run as they were until then; persysctl rollout status GROUP follows.")]);
  }

  // follow shows the way to running.
  async function follow(ids, beside) {
    planned = "";
    const began = Date.now(), box = card("Progress"), most = 50;
    replace(out, beside, box);
    let done = false;
    const stop = new AbortController();
    signal.addEventListener("abort", () => stop.abort());
    await refresh(async () => {
      const seen = await Promise.all(ids.slice(0, most).map((id) => get("/workloads/" + encodeURIComponent(id), stop.signal).then((x) => x.workload, (e) => ({ workload_id: id, status: e.status === 404 ? "Deleted" : "Unknown", message: e.message }))));
      const open = seen.filter((w) => !((w.status === w.desired_state && (w.status !== "Running" || !w.health || w.health === "healthy")) || w.status === "Deleted" || (w.status === "Failed" && !w.retry_next_at)));
      replace(box, h("h2", {}, open.length === 0 ? "Done" : `${seen.length - open.length} of ${seen.length} there, ${Math.round((Date.now() - began) / 1000)} s`),
        ids.length > most && h("p", { class: "quiet" }, `These are the first ${most} of ${ids.length}.`),
        table(["Workload", "State", "Node", "Says"], seen.map((w) => [workloadLink(w.workload_id), state(w.status), nodeLink(w.assigned_node_id), w.message || w.reason?.message || ""]), ""));
      if (open.length === 0 && !done) { done = true; stop.abort(); toast(`${ids.length} applied.`); }
    }, stop.signal, { every: 1000, about: (e) => ids.includes(e.workload_id) });
  }
}
