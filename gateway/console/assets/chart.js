// @ts-check
// Charts of one resource: the total, what is reserved, what is used now, and the use since the console
// was opened. Samples are kept in this tab only.
import { h } from "./dom.js";

const maxSamples = 120, maxLines = 400;
/** @type {Map<string, {at: number, used: number}[]>} */
const lines = new Map();

/**
 * Adds a sample of the use to the line of that name; a further sample within one second replaces it.
 * @param {string} name @param {number} used
 */
function sample(name, used) {
  const line = lines.get(name) || [];
  lines.set(name, line);
  const at = Date.now();
  if (line.length && at - line[line.length - 1].at < 1000) line.pop();
  line.push({ at, used });
  if (line.length > maxSamples) line.shift();
  if (lines.size > maxLines) {
    const [oldest] = lines.keys();
    lines.delete(oldest);
  }
  return line;
}

/** Makes an SVG element. */
export const svg = (tag, attributes, ...children) => {
  const el = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) el.setAttribute(k, v);
  el.append(...children);
  return el;
};

/**
 * @param {string} label @param {string} name of the line of samples
 * @param {{total: number, reserved: number, used?: number, unit: (n: number) => string}} amounts used is
 * undefined where it is not measured
 */
export function chart(label, name, { total, reserved, used, unit }) {
  const text = total > 0 ? `${unit(reserved)} reserved of ${unit(total)}` : `${unit(reserved)} reserved`;
  const now = used === undefined ? "use not measured" : `${unit(used)} in use`;
  const top = Math.max(total, reserved, used || 0, 1), y = (v) => (40 - (v / top) * 38).toFixed(1);
  const line = used === undefined ? [] : sample(name, used);
  const from = line[0]?.at || 0, span = Math.max(1, Date.now() - from);
  const points = line.map((s) => `${(((s.at - from) / span) * 200).toFixed(1)},${y(s.used)}`);
  if (points.length === 1) points.unshift(`0,${y(line[0].used)}`);
  const drawing = svg("svg", {
    viewBox: "0 0 200 42", preserveAspectRatio: "none", class: "spark", role: "img",
    "aria-label": `${label}: ${now}, ${text}`,
  });
  if (total > 0) {
    const height = (40 - Number(y(reserved))).toFixed(1);
    const cls = reserved > total * 0.95 ? "reserved full" : "reserved";
    drawing.append(
      svg("rect", { x: 0, y: y(reserved), width: 200, height, class: cls }),
      svg("line", { x1: 0, x2: 200, y1: y(total), y2: y(total), class: "total" }));
  }
  if (points.length) drawing.append(svg("polyline", { points: points.join(" "), class: "used" }));
  return h("div", { class: "chart" },
    h("div", {}, h("span", {}, label), h("span", { class: "quiet" }, now)), drawing, h("div", { class: "quiet" }, text));
}
