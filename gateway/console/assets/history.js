// Revisions of a workload: what changed with each, any two side by side, and back
// to one of them. Read when its tab is opened for the first time.
import { get, query } from "./api.js";
import { card, clock, confirmed, h, replace, table } from "./dom.js";

const changes = (list) => table(["Field", "Before", "After"], list.map((c) => [h("span", { class: "mono" }, c.field),
  h("del", {}, c.before || ""), h("ins", {}, c.after || "")]), "Nothing differs.");

// showHistory fills body; back is called with the number of a revision to apply.
export async function showHistory(body, signal, id, back) {
  const at = "/workloads/" + encodeURIComponent(id) + "/revisions";
  const { revisions: list = [] } = await get(at, signal);
  if (signal.aborted) return;
  const had = (name) => document.getElementById(name)?.value;
  const pick = (name, chosen) => h("select", { id: name, onchange: compare }, list.map((r) => h("option", { value: r.number, selected: String(r.number) === String(chosen) }, `${r.number}${r.present ? " (now)" : ""}`)));
  const from = pick("from-revision", had("from-revision") || (list[1] || list[0])?.number), to = pick("to-revision", had("to-revision") || list[0]?.number);
  const out = h("div", { "aria-live": "polite" });
  async function compare() {
    try {
      const r = await get(at + query({ from: from.value, to: to.value }), signal);
      replace(out, changes(r.changes || []));
    } catch (e) { if (!signal.aborted) replace(out, h("p", { class: "err" }, e.message)); }
  }
  replace(body,
    card("Revisions", h("p", { class: "quiet" }, "The present one and the five before it are kept."),
      table(["Number", "Revision", "Applied", "By", "What changed", ""], list.map((r) => [r.present ? `${r.number} (now)` : String(r.number), h("span", { class: "mono" }, [r.revision_id, r.caller_revision_id].filter(Boolean).join(" ")),
        clock(r.applied_at), r.by || "–", (r.changes || []).length ? (r.changes || []).map((c) => h("div", { class: "mono" }, c.field)) : "–",
        !r.present && h("button", { onclick: async () => {
          const diff = await get(at + query({ from: list[0].number, to: r.number }), signal);
          if (await confirmed(`Roll ${id} back to revision ${r.number}?`, h("div", {}, h("p", {}, "It becomes a new revision, with the secrets that it had."), changes(diff.changes || [])), "Roll back", true)) await back(r.number);
        } }, "Roll back …")]), "")),
    list.length > 1 && card("Difference", h("div", { class: "filters" }, h("label", {}, "From", from), h("label", {}, "To", to)), out));
  if (list.length > 1) await compare();
}
