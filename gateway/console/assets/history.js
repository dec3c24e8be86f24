// @ts-check
// Revisions of a workload: the changes of each, the difference of any two, and rolling back. Loaded when
// its tab is first opened.
import { get, query } from "./api.js";
import { byId, card, clock, confirmed, h, replace, table } from "./dom.js";

const mono = (text) => h("span", { class: "mono" }, text);
const changeRow = (c) => [mono(c.field), h("del", {}, c.before || ""), h("ins", {}, c.after || "")];
const changeTable = (list) => table(["Field", "Before", "After"], list.map(changeRow), "Nothing differs.");

/**
 * Fills body with the revisions of a workload.
 * @param {HTMLElement} body @param {AbortSignal} signal @param {string} id
 * @param {((number: number) => Promise<void>) | false} rollBack applies the revision of that number again; false if
 * the reader may not
 */
export async function showHistory(body, signal, id, rollBack) {
  const at = "/workloads/" + encodeURIComponent(id) + "/revisions";
  const { revisions: list = [] } = await get(at, signal);
  if (signal.aborted) return;
  const name = (r) => (r.present ? `${r.number} (now)` : String(r.number));
  const had = (id) => byId(id)?.value;
  const pick = (id, chosen) => h("select", { id, onchange: compare },
    list.map((r) => h("option", { value: r.number, selected: String(r.number) === String(chosen) }, name(r))));
  const from = pick("from-revision", had("from-revision") || (list[1] || list[0])?.number);
  const to = pick("to-revision", had("to-revision") || list[0]?.number);
  const out = h("div", { "aria-live": "polite" });
  async function compare() {
    try {
      const r = await get(at + query({ from: from.value, to: to.value }), signal);
      replace(out, changeTable(r.changes || []));
    } catch (/** @type {any} */ e) {
      if (!signal.aborted) replace(out, h("p", { class: "err" }, e.message));
    }
  }
  async function confirmRollBack(r) {
    const diff = await get(at + query({ from: list[0].number, to: r.number }), signal);
    const text = h("p", {}, `A new revision is made, with the specification and the secrets of revision ${r.number}.`);
    const body = h("div", {}, text, changeTable(diff.changes || []));
    const yes = await confirmed(`Roll ${id} back to revision ${r.number}?`, body, "Roll back", true);
    if (yes && rollBack) await rollBack(r.number);
  }
  const row = (r) => [
    name(r), mono([r.revision_id, r.caller_revision_id].filter(Boolean).join(" ")), clock(r.applied_at), r.by || "–",
    (r.changes || []).length ? r.changes.map((c) => h("div", { class: "mono" }, c.field)) : "–",
    rollBack && !r.present && h("button", { onclick: () => confirmRollBack(r) }, "Roll back …"),
  ];
  replace(body,
    card("Revisions", h("p", { class: "quiet" }, "The current revision and the five before it are kept."),
      table(["Number", "Revision", "Applied", "By", "What changed", ""], list.map(row), "")),
    list.length > 1 && card("Difference",
      h("div", { class: "filters" }, h("label", {}, "From", from), h("label", {}, "To", to)), out));
  if (list.length > 1) await compare();
}
