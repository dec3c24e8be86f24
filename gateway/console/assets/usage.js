// @ts-check
// The use of a node or of a workload during the last hour or day, as its agent measured it.
import { get } from "./api.js";
import { svg } from "./chart.js";
import { card, cores, h, int, mib, replace } from "./dom.js";
import { refresh } from "./live.js";

/** @typedef {{at: number, value: number}} Point at is in ms */

const rate = (/** @type {number} */ n) => (n >= 1e6 ? (n / 1e6).toFixed(1) + " MB/s" : (n / 1000).toFixed(1) + " kB/s");
const width = 300, height = 60;

/**
 * One measured value, drawn as a line over time. A gap in the measurements is a gap in the line.
 * @param {string} label @param {Point[]} points @param {(n: number) => string} unit
 * @param {number} span length of the axis of time in ms @param {number} step time between two points in ms
 */
function line(label, points, unit, span, step) {
  const last = points[points.length - 1], most = Math.max(...points.map((p) => p.value)), now = Date.now();
  const top = Math.max(most, 1);
  const at = (/** @type {Point} */ p) => [
    Math.max(0, width - ((now - p.at) / span) * width).toFixed(1), (height - 2 - (p.value / top) * (height - 6)).toFixed(1),
  ].join(",");
  /** @type {Point[][]} */
  const parts = [];
  points.forEach((p, i) => {
    if (i === 0 || p.at - points[i - 1].at > 2 * step) parts.push([]);
    parts[parts.length - 1].push(p);
  });
  const text = `${unit(last.value)} now, at most ${unit(most)}`;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "spark tall", role: "img",
    "aria-label": `${label}: ${text}`,
  });
  for (const part of parts) {
    const dots = part.map(at);
    if (dots.length === 1) dots.push(`${Number(dots[0].split(",")[0]) + 2},${dots[0].split(",")[1]}`);
    drawing.append(svg("polyline", { points: dots.join(" "), class: "used" }));
  }
  return h("div", { class: "chart" }, h("div", {}, label), drawing, h("div", { class: "quiet" }, text));
}

/**
 * A card that shows the use of the node or workload at `at` and is read again every 15 seconds.
 * @param {string} at path below /v1 @param {AbortSignal} signal
 */
export function usageCard(at, signal) {
  let day = false;
  const charts = h("div", {});
  const button = (text, chosen) => h("button", { type: "button", "aria-pressed": String(day === chosen), onclick: choose }, text);
  function choose(e) {
    day = e.target.textContent === "Day";
    e.target.parentElement.querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed", String(b === e.target)));
    show().catch((err) => { if (!signal.aborted) replace(charts, h("p", { class: "err" }, err.message)); });
  }
  async function show() {
    const wanted = day;
    const r = await get(at + "/usage" + (day ? "?day=true" : ""), signal);
    if (signal.aborted || wanted !== day) return;
    const list = r.samples || [];
    if (list.length === 0) {
      replace(charts, h("p", { class: "empty" }, "Nothing is measured yet. The agent keeps what it measured since it started."));
      return;
    }
    const span = day ? 864e5 : 36e5, step = int(r.step_seconds) * 1000;
    const points = (/** @type {string} */ key, scale = 1) => list.map(
      (s) => ({ at: Date.parse(s.start), value: int(s[key]) / scale }));
    replace(charts, h("div", { class: "charts" },
      line("CPU", points("cpu_millicores"), cores, span, step),
      line("Memory", points("memory_bytes", 1 << 20), (n) => mib(Math.round(n)), span, step),
      line("Received", points("net_rx_bytes_per_second"), rate, span, step),
      line("Sent", points("net_tx_bytes_per_second"), rate, span, step)));
  }
  refresh(async () => {
    try {
      await show();
    } catch (/** @type {any} */ e) { // the rest of the page does not depend on the agent's answer
      if (!signal.aborted) replace(charts, h("p", { class: "empty" }, e.message));
    }
  }, signal, { every: 15000, about: () => false });
  return card("Use", h("div", { class: "filters" },
    h("div", { role: "group", "aria-label": "Span" }, button("Hour", false), " ", button("Day", true))), charts);
}
