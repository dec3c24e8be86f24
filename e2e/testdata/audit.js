// Checks the accessibility rules (WCAG 2.2 A and AA) that a program can check.
// Evaluates to the list of violations.
(() => {
  const out = [];
  const where = (el) => el.tagName.toLowerCase() + (el.id ? "#" + el.id : "") + (el.className && el.className.baseVal === undefined ? "." + String(el.className).trim().replaceAll(" ", ".") : "") + ` "${(el.textContent || "").trim().slice(0, 40)}"`;
  const shown = (el) => el.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const all = (q) => [...document.querySelectorAll(q)].filter(shown);
  const labelled = (el) => (el.getAttribute("aria-label") || "").trim() || (el.getAttribute("aria-labelledby") || "").split(" ").some((id) => document.getElementById(id)?.textContent.trim());

  if (!document.documentElement.lang) out.push("3.1.1: the page names no language");
  if (!document.title.trim()) out.push("2.4.2: the page has no title");
  for (const tag of ["main", "header", "nav"]) if (!document.querySelector(tag)) out.push(`1.3.1: there is no ${tag}`);
  if (all("h1").length !== 1) out.push(`1.3.1: ${all("h1").length} headings of the first level`);
  let level = 0;
  for (const el of all("h1, h2, h3, h4")) {
    const n = Number(el.tagName[1]);
    if (n > level + 1) out.push(`1.3.1: a heading of level ${n} follows level ${level}: ${where(el)}`);
    level = n;
  }
  const ids = new Set();
  for (const el of document.querySelectorAll("[id]")) { if (ids.has(el.id)) out.push(`4.1.1: the id ${el.id} is there twice`); ids.add(el.id); }
  for (const el of all("img")) if (!el.hasAttribute("alt")) out.push("1.1.1: a picture without alt: " + where(el));
  for (const el of all("input, select, textarea")) if (!labelled(el) && !(el.labels && el.labels.length)) out.push("3.3.2: a field without a label: " + where(el));
  for (const el of all("button, a[href]")) if (!el.textContent.trim() && !labelled(el) && !el.querySelector("img[alt]:not([alt=''])")) out.push("4.1.2: nothing says what this does: " + where(el));
  for (const el of document.querySelectorAll("[aria-controls], [aria-labelledby], [aria-describedby]")) {
    for (const a of ["aria-controls", "aria-labelledby", "aria-describedby"]) for (const id of (el.getAttribute(a) || "").split(" ").filter(Boolean)) if (!document.getElementById(id)) out.push(`4.1.2: ${a} names ${id}, which is not there: ${where(el)}`);
  }
  for (const el of all("[role=tablist]")) if (!el.querySelector("[role=tab][aria-selected=true]")) out.push("4.1.2: no tab is selected: " + where(el));
  for (const el of all("*")) {
    const s = getComputedStyle(el);
    if (/(auto|scroll)/.test(s.overflowY + s.overflowX) && (el.scrollHeight > el.clientHeight + 1 || el.scrollWidth > el.clientWidth + 1) && el.tabIndex < 0 && !el.querySelector("a[href], button, input") && el !== document.documentElement && el !== document.body) out.push("2.1.1: what scrolls cannot be reached by keys: " + where(el));
    if (el.tabIndex > 0) out.push("2.4.3: a tab index over 0: " + where(el));
  }

  // 1.4.3: contrast of text.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (c) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); const d = canvas.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = (c) => { const f = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]); };
  const back = (el) => { const stack = []; for (let e = el; e; e = e.parentElement) stack.push(rgba(getComputedStyle(e).backgroundColor)); let c = [255, 255, 255, 1]; for (const s of stack.reverse()) c = over(s, c); return c; };
  const said = new Set();
  for (const el of all("body *")) {
    if (![...el.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || el.closest(":disabled, noscript, .skip, [aria-hidden=true]")) continue;
    const s = getComputedStyle(el), b = back(el), t = over(rgba(s.color), b);
    const [x, y] = [light(t), light(b)].sort((p, q) => q - p);
    const size = parseFloat(s.fontSize), large = size >= 24 || (size >= 18.66 && Number(s.fontWeight) >= 700);
    const ratio = (x + 0.05) / (y + 0.05), key = s.color + b;
    if (ratio < (large ? 3 : 4.5) && !said.has(key)) { said.add(key); out.push(`1.4.3: contrast ${ratio.toFixed(2)} of ${where(el)}`); }
  }
  return out;
})()
