// Small charts: what there is, what is reserved, what is used now, and how that
// went while the console was open. The line is drawn here and kept in this tab.
import { h } from "./dom.js";

const kept = 120; // samples of one line
const lines = new Map();

// sample adds what is used now to the line of that name, at most once per second.
export function sample(name, used) {
  const line = lines.get(name) || [];
  lines.set(name, line);
  const at = Date.now();
  if (line.length && at - line[line.length - 1].at < 1000) line.pop();
  line.push({ at, used });
  if (line.length > kept) line.shift();
  if (lines.size > 400) lines.delete(lines.keys().next().value);
  return line;
}

const svg = (tag, attributes, ...children) => {
  const el = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) el.setAttribute(k, v);
  el.append(...children);
  return el;
};

// chart shows one resource. used is undefined where nobody measures it.
export function chart(label, name, { total, reserved, used, unit }) {
  const text = total > 0 ? `${unit(reserved)} reserved of ${unit(total)}` : `${unit(reserved)} reserved`;
  const now = used === undefined ? "use not measured" : `${unit(used)} in use`;
  const top = Math.max(total, reserved, used || 0, 1), y = (v) => (40 - (v / top) * 38).toFixed(1);
  const line = used === undefined ? [] : sample(name, used);
  const from = line[0]?.at || 0, span = Math.max(1, Date.now() - from);
  const points = line.map((s) => `${(((s.at - from) / span) * 200).toFixed(1)},${y(s.used)}`);
  if (points.length === 1) points.unshift(`0,${y(line[0].used)}`);
  const drawing = svg("svg", { viewBox: "0 0 200 42", preserveAspectRatio: "none", class: "spark", role: "img", "aria-label": `${label}: ${now}, ${text}` });
  if (total > 0) drawing.append(svg("rect", { x: 0, y: y(reserved), width: 200, height: (40 - Number(y(reserved))).toFixed(1), class: reserved > total * 0.95 ? "reserved full" : "reserved" }), svg("line", { x1: 0, x2: 200, y1: y(total), y2: y(total), class: "total" }));
  if (points.length) drawing.append(svg("polyline", { points: points.join(" "), class: "used" }));
  return h("div", { class: "chart" }, h("div", {}, h("span", {}, label), h("span", { class: "quiet" }, now)), drawing, h("div", { class: "quiet" }, text));
}
