// @ts-check
// Deploy: a specification, its plan, and the progress after it is applied.
import { get, post, unsure } from "./api.js";
import { card, confirmed, dataLines, h, nodeLink, replace, state, table, toast, workloadLink } from "./dom.js";
import { refresh } from "./live.js";
import { verdicts } from "./placement.js";

const example = `id: hello
resources: {cpu: 100m, memory: 64Mi}
container:
  image: persys/hello:demo
  ports: ["8080:8080"]
`;

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function deploy(main, signal) {
  const text = h("textarea", { id: "spec", spellcheck: "false", autocapitalize: "off", "aria-describedby": "spec-help" });
  text.value = sessionStorage.getItem("draft") || example;
  const file = h("input", { type: "file", accept: ".yaml,.yml,.json", "aria-label": "Read a file", onchange: readFile });
  const out = h("div", { "aria-live": "polite" });
  const apply = h("button", { class: "main", disabled: true, onclick: send }, "Apply");
  // planned is the request whose plan the page shows; endings are the workloads that this request stops
  // or deletes.
  let planned = "";
  /** @type {string[]} */
  let endings = [];
  const name = h("input", { id: "stack", type: "text", autocapitalize: "off", spellcheck: "false", oninput: changed });
  const named = h("p", { hidden: true }, h("label", { for: "stack" }, "Name of the stack "), name);
  // A Compose file may have no key "name", so the page asks for a name.
  const isCompose = () => /^services\s*:/m.test(text.value)
    && !/^(id|workload_id|container|compose|vm|spec)\s*:/m.test(text.value);
  const body = () => ({ file: text.value, ...(isCompose() && name.value ? { name: name.value } : {}) });
  const request = () => JSON.stringify(body());
  async function readFile() {
    if (!file.files[0]) return;
    text.value = await file.files[0].text();
    changed();
  }
  function changed() {
    named.hidden = !isCompose();
    sessionStorage.setItem("draft", text.value);
    apply.disabled = request() !== planned;
  }
  text.addEventListener("input", changed);
  const help = " – YAML or JSON, one document or several, or a Compose file as it is";
  replace(main, h("h1", {}, "Deploy"),
    card("", h("p", {}, h("label", { for: "spec" }, "Specification"), h("span", { class: "quiet", id: "spec-help" }, help)),
      text, named,
      h("div", { class: "actions", style: { marginTop: ".75rem" } },
        file, h("button", { onclick: plan }, "Show the plan"), apply)),
    out);
  changed();

  const errors = (title, lines) => card(title, h("ul", { class: "err" }, lines.map((line) => h("li", {}, line))));

  // fault shows an error and selects the line of the specification that the error names. If sent is true, the
  // request may have been carried out.
  function fault(e, sent) {
    const title = sent && unsure(e)
      ? "The specification may have been applied or not: look at the workloads, or apply it again"
      : "Nothing has been changed";
    replace(out, errors(title, e.message.split("\n")));
    const at = /(?:^|\s)(\d+):(\d+):/.exec(e.message);
    if (!at) return;
    const lines = text.value.split("\n"), n = Number(at[1]);
    const before = lines.slice(0, n - 1).join("\n").length + (n > 1 ? 1 : 0);
    text.focus();
    text.setSelectionRange(before, before + (lines[n - 1] || "").length);
  }

  const change = (c) => h("div", {}, h("span", { class: "mono" }, c.field),
    c.before || c.after ? `: ${c.before || "–"} → ${c.after || "–"}` : "");
  // takenBack shows a field that this apply would set back, although somebody changed the field in a later revision.
  function takenBack(b) {
    const values = b.before || b.after ? `: ${b.before || "–"} → ${b.after || "–"}` : "";
    const by = (b.by || "").split("/").pop();
    const set = Number(b.revision || 0) > 0 ? `, set${by ? ` by ${by}` : ""} in revision ${b.revision}` : "";
    return h("div", {}, h("strong", {}, "takes back "), `${b.field}${values}${set}`);
  }
  const turns = (w) => `one after another, ${w.at_a_time} at a time${w.extra_members ? `, after ${w.extra_members} extra` : ""}`;
  const planRow = (w) => [
    w.workload_id,
    h("div", {}, state(w.action), w.at_a_time ? h("div", { class: "quiet" }, turns(w)) : ""),
    nodeLink(w.node_id),
    h("div", {},
      w.reason ? h("div", { class: w.action === "delete" ? "" : "err" }, w.reason) : (w.changes || []).map(change),
      w.members,
      (w.action === "delete" ? dataLines(w) : []).map((l) => h("div", {}, l)),
      (w.takes_back || []).map(takenBack)),
  ];

  async function plan() {
    const asked = request();
    let r;
    try {
      r = await post("/plan", body());
    } catch (e) {
      planned = "";
      changed();
      fault(e, false);
      return;
    }
    const list = r.workloads || [];
    const refused = list.some((w) => w.action === "refused");
    planned = refused || r.frozen ? "" : asked;
    endings = list.filter((w) => ["delete", "stop"].includes(w.action)).map((w) => `${w.action} ${w.workload_id}`);
    changed();
    const placed = list.filter((w) => (w.nodes || []).length > 0);
    replace(out,
      r.frozen && card("An apply would be refused now", h("p", { class: "err" }, r.frozen)),
      card("The plan", table(["Workload", "Action", "Would run on", "What changes"], list.map(planRow), "")),
      placed.map((w) => h("details", { class: "card" },
        h("summary", {}, `Placement of ${w.workload_id}, node by node`), verdicts(w.nodes, w.present_node_id))));
  }

  async function send() {
    const items = h("ul", {}, endings.map((e) => h("li", {}, e)));
    if (endings.length && !await confirmed("Apply this plan?", items, "Apply", true)) return;
    apply.disabled = true;
    let r;
    try {
      r = await post("/apply", body());
    } catch (e) {
      changed();
      fault(e, true);
      return;
    }
    const results = r.results || [];
    const refused = results.filter((x) => !x.success).map((x) => x.error_message);
    const ids = results.filter((x) => x.success).flatMap((x) => x.workload_ids || []);
    if (ids.length === 0) {
      fault(new Error(refused.join("\n")), false);
      return;
    }
    const turns = "A group is updated a few members at a time; until a member is updated, it runs unchanged. "
      + "To follow the update: persysctl rollout status GROUP";
    await follow(ids, [
      refused.length > 0 && errors(`${refused.length} of ${results.length} refused; the others have been applied`, refused),
      results.some((x) => x.rollout) && h("p", {}, turns),
      results.flatMap((x) => (x.takes_back || []).map((b) => h("p", {}, x.workload_ids?.join(", "), " ", takenBack(b)))),
    ]);
  }

  const reached = (w) => w.status === w.desired_state && (w.status !== "Running" || !w.health || w.health === "healthy");
  const over = (w) => reached(w) || w.status === "Deleted" || (w.status === "Failed" && !w.retry_next_at);
  const progressRow = (w) => [
    workloadLink(w.workload_id), state(w.status), nodeLink(w.assigned_node_id), w.message || w.reason?.message || "",
  ];

  // follow shows workloads until each has reached its desired state or has failed.
  async function follow(ids, notes) {
    planned = "";
    const began = Date.now(), box = card("Progress"), most = 50;
    replace(out, notes, box);
    let done = false;
    const stop = new AbortController();
    signal.addEventListener("abort", () => stop.abort());
    const read = (id) => get("/workloads/" + encodeURIComponent(id), stop.signal).then((x) => x.workload,
      (e) => ({ workload_id: id, status: e.status === 404 ? "Deleted" : "Unknown", message: e.message }));
    await refresh(async () => {
      const seen = await Promise.all(ids.slice(0, most).map(read));
      const finished = seen.filter(over).length, all = finished === seen.length;
      replace(box,
        h("h2", {}, all ? "Done" : `${finished} of ${seen.length} done, ${Math.round((Date.now() - began) / 1000)} s`),
        ids.length > most && h("p", { class: "quiet" }, `These are the first ${most} of ${ids.length}.`),
        table(["Workload", "State", "Node", "Message"], seen.map(progressRow), ""));
      if (!all || done) return;
      done = true;
      stop.abort();
      toast(`${ids.length} applied.`);
    }, stop.signal, { every: 1000, about: (e) => ids.includes(e.workload_id) });
  }
}
