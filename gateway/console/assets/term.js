// A small terminal: the part of a VT100 and xterm that shells, editors and pagers
// need. It keeps a grid of cells and what has scrolled off it, draws the rows that
// changed once per frame, and turns keys into the bytes that a terminal sends.
import { h } from "./dom.js";

const keptLines = 2000;
const blank = { ch: " ", at: "" };

// Screen is the state without any element: feed it text, read rows.
export class Screen {
  constructor(cols, rows, reply = () => {}) {
    this.reply = reply;
    this.gone = 0; // lines that scrolled off since the last drawing are in this.past
    this.past = [];
    this.cols = cols; this.rows = rows;
    this.reset();
  }
  reset() {
    this.grid = Array.from({ length: this.rows }, () => []);
    this.x = this.y = 0; this.top = 0; this.bottom = this.rows - 1;
    this.pen = ""; this.styles = new Map(); this.saved = null; this.main = null;
    this.appKeys = false; this.shown = true; this.wrap = false; this.rest = "";
    this.dirty = new Set(this.grid.keys());
  }
  resize(cols, rows) {
    while (this.grid.length > rows) { if (this.y < this.grid.length - 1) this.grid.pop(); else { this.keep(this.grid.shift()); this.y--; } }
    while (this.grid.length < rows) this.grid.push([]);
    this.cols = cols; this.rows = rows;
    this.top = 0; this.bottom = rows - 1;
    this.x = Math.min(this.x, cols - 1); this.y = Math.max(0, Math.min(this.y, rows - 1)); this.wrap = false;
    this.dirty = new Set(this.grid.keys());
  }
  keep(row) { if (!this.main) { this.past.push(row); if (this.past.length > keptLines) this.past.shift(); } }
  row(y) { this.dirty.add(y); return this.grid[y]; }

  write(text) {
    text = this.rest + text;
    this.rest = "";
    for (let i = 0; i < text.length;) {
      const c = text[i];
      if (c === "\x1b") {
        const n = this.escape(text.slice(i, i + 4096));
        if (n === 0) { this.rest = text.slice(i); return; }
        i += n;
        continue;
      }
      const cp = text.codePointAt(i), ch = String.fromCodePoint(cp);
      i += ch.length;
      if (c === "\n" || c === "\v" || c === "\f") this.feed();
      else if (c === "\r") { this.x = 0; this.wrap = false; }
      else if (c === "\b") { this.x = Math.max(0, this.x - 1); this.wrap = false; }
      else if (c === "\t") this.x = Math.min(this.cols - 1, (Math.floor(this.x / 8) + 1) * 8);
      else if (cp >= 32 && cp !== 127) this.put(ch);
    }
  }
  put(ch) {
    if (this.wrap) { this.x = 0; this.wrap = false; this.feed(); }
    const row = this.row(this.y);
    if (/\p{Mn}/u.test(ch)) { const at = row[Math.max(0, this.x - 1)]; if (at) row[Math.max(0, this.x - 1)] = { ch: at.ch + ch, at: at.at }; return; }
    while (row.length < this.x) row.push(blank);
    row[this.x] = { ch, at: this.pen };
    if (this.x === this.cols - 1) this.wrap = true; else this.x++;
  }
  feed() {
    this.dirty.add(this.y);
    if (this.y === this.bottom) this.scroll(1); else if (this.y < this.rows - 1) this.y++;
    this.dirty.add(this.y);
  }
  scroll(n) {
    for (; n > 0; n--) { const [row] = this.grid.splice(this.top, 1); if (this.top === 0) this.keep(row); this.grid.splice(this.bottom, 0, []); }
    for (; n < 0; n++) { this.grid.splice(this.bottom, 1); this.grid.splice(this.top, 0, []); }
    for (let y = this.top; y <= this.bottom; y++) this.dirty.add(y);
  }

  // escape obeys one sequence and returns its length, 0 if more of it is to come.
  escape(s) {
    if (s.length < 2) return 0;
    if (s[1] === "[") {
      const m = /^\x1b\[([<=>?]?)([\d;:]*)([ -/]*)([@-~])/.exec(s);
      if (!m) return s.length > 64 || /^\x1b\[[^@-~]*[^ -~]/.test(s) ? 2 : 0;
      if (!m[3]) this.csi(m[1], m[2].split(/[;:]/).map((v) => (v === "" ? undefined : Math.min(9999, Number(v)))), m[4]);
      return m[0].length;
    }
    if ("]PX^_".includes(s[1])) { // a title, and other strings that are not shown
      const m = /^\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|(?=\x1b[^\\]))/.exec(s); // another sequence ends it, too
      return m ? m[0].length : s.length >= 4096 ? 2 : 0;
    }
    if ("()*+#%".includes(s[1])) return s.length < 3 ? 0 : 3;
    switch (s[1]) {
      case "7": this.saved = { x: this.x, y: this.y, pen: this.pen, styles: new Map(this.styles) }; break;
      case "8": this.restore(); break;
      case "D": this.feed(); break;
      case "E": this.x = 0; this.feed(); break;
      case "M": if (this.y === this.top) this.scroll(-1); else this.move(this.x, this.y - 1); break;
      case "c": this.reset(); break;
    }
    return 2;
  }
  restore() { const s = this.saved; if (s) { this.move(s.x, s.y); this.pen = s.pen; this.styles = new Map(s.styles); } else this.move(0, 0); }
  move(x, y) {
    this.dirty.add(this.y);
    this.x = Math.max(0, Math.min(this.cols - 1, x)); this.y = Math.max(0, Math.min(this.rows - 1, y)); this.wrap = false;
    this.dirty.add(this.y);
  }
  csi(mark, p, verb) {
    const n = Math.max(1, p[0] ?? 1), row = () => this.row(this.y);
    if (mark === "?") {
      if (verb === "h" || verb === "l") for (const mode of p) this.mode(mode, verb === "h");
      return;
    }
    if (mark) return;
    switch (verb) {
      case "A": this.move(this.x, this.y - n); break;
      case "B": case "e": this.move(this.x, this.y + n); break;
      case "C": case "a": this.move(this.x + n, this.y); break;
      case "D": this.move(this.x - n, this.y); break;
      case "E": this.move(0, this.y + n); break;
      case "F": this.move(0, this.y - n); break;
      case "G": case "`": this.move(n - 1, this.y); break;
      case "d": this.move(this.x, n - 1); break;
      case "H": case "f": this.move((p[1] || 1) - 1, n - 1); break;
      case "J": {
        const from = p[0] || 0;
        if (from === 0) row().length = Math.min(row().length, this.x);
        if (from === 1) this.clear(this.y, 0, this.x + 1);
        for (let y = 0; y < this.rows; y++) if (from >= 2 || (from === 0 && y > this.y) || (from === 1 && y < this.y)) { this.grid[y] = []; this.dirty.add(y); }
        if (from === 3) this.past.length = 0;
        break;
      }
      case "K":
        if (!p[0]) row().length = Math.min(row().length, this.x);
        else if (p[0] === 1) this.clear(this.y, 0, this.x + 1);
        else { this.grid[this.y] = []; this.dirty.add(this.y); }
        break;
      case "X": this.clear(this.y, this.x, this.x + n); break;
      case "P": row().splice(this.x, n); break;
      case "@": { const r = row(); while (r.length < this.x) r.push(blank); r.splice(this.x, 0, ...Array(Math.min(n, this.cols)).fill(blank)); r.length = Math.min(r.length, this.cols); break; }
      case "L": case "M": if (this.y >= this.top && this.y <= this.bottom) { const t = this.top; this.top = this.y; const kept = this.main; this.main = this.main || {}; this.scroll(verb === "L" ? -Math.min(n, this.rows) : Math.min(n, this.rows)); this.main = kept; this.top = t; } break;
      case "S": this.scroll(Math.min(n, this.rows)); break;
      case "T": this.scroll(-Math.min(n, this.rows)); break;
      case "r": { const t = n - 1, b = Math.min(this.rows, p[1] || this.rows) - 1; if (t < b) { this.top = t; this.bottom = b; this.move(0, 0); } break; }
      case "s": this.saved = { x: this.x, y: this.y, pen: this.pen, styles: new Map(this.styles) }; break;
      case "u": this.restore(); break;
      case "n": if (p[0] === 6) this.reply(`\x1b[${this.y + 1};${this.x + 1}R`); else if (p[0] === 5) this.reply("\x1b[0n"); break;
      case "c": this.reply("\x1b[?6c"); break;
      case "m": this.sgr(p); break;
    }
  }
  clear(y, from, to) { const r = this.row(y); for (let x = from; x < Math.min(to, r.length); x++) r[x] = blank; }
  mode(mode, on) {
    if (mode === 1) this.appKeys = on;
    if (mode === 25) { this.shown = on; this.dirty.add(this.y); }
    if (mode === 47 || mode === 1047 || mode === 1049) {
      if (on && !this.main) { this.main = { grid: this.grid, x: this.x, y: this.y }; this.grid = Array.from({ length: this.rows }, () => []); this.move(0, 0); }
      else if (!on && this.main) { const m = this.main; this.main = null; this.grid = m.grid; while (this.grid.length < this.rows) this.grid.push([]); while (this.grid.length > this.rows) this.keep(this.grid.shift()); this.move(m.x, m.y); }
      this.top = 0; this.bottom = this.rows - 1;
      this.dirty = new Set(this.grid.keys());
    }
  }
  // sgr: of colours the first sixteen are shown, the rest as plain text.
  sgr(p) {
    const s = this.styles;
    for (let i = 0; i < p.length; i++) {
      const v = p[i] || 0;
      if (v === 0) s.clear();
      else if (v === 1) s.set("b", "b"); else if (v === 2) s.set("b", "d"); else if (v === 22) s.delete("b");
      else if (v === 4) s.set("u", "u"); else if (v === 24) s.delete("u");
      else if (v === 7) s.set("i", "i"); else if (v === 27) s.delete("i");
      else if (v >= 30 && v <= 37) s.set("f", "f" + (v - 30)); else if (v >= 90 && v <= 97) s.set("f", "f" + (v - 90));
      else if (v === 39) s.delete("f");
      else if (v === 38 || v === 48) { const index = p[i + 1] === 5; if (v === 38) { if (index && p[i + 2] < 16) s.set("f", "f" + (p[i + 2] % 8)); else s.delete("f"); } i += index ? 2 : 4; }
    }
    this.pen = [...s.values()].sort().join(" ");
  }
}

const keys = { Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b", Insert: "\x1b[2~", Delete: "\x1b[3~", PageUp: "\x1b[5~", PageDown: "\x1b[6~",
  F1: "\x1bOP", F2: "\x1bOQ", F3: "\x1bOR", F4: "\x1bOS", F5: "\x1b[15~", F6: "\x1b[17~", F7: "\x1b[18~", F8: "\x1b[19~", F9: "\x1b[20~", F10: "\x1b[21~" };
const cursor = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };

// bytesOf is what a terminal sends for a key, "" for what the browser keeps.
export function bytesOf(e, appKeys) {
  if (e.metaKey || e.isComposing) return "";
  if (e.ctrlKey && e.shiftKey) return ""; // the browser's own copy and paste
  const esc = e.altKey ? "\x1b" : "";
  if (cursor[e.key]) return esc + (appKeys ? "\x1bO" : "\x1b[") + cursor[e.key];
  if (e.key === "Tab" && e.shiftKey) return "\x1b[Z";
  if (keys[e.key]) return esc + keys[e.key];
  if (e.ctrlKey) {
    const k = e.key.toUpperCase();
    if (k === " ") return "\x00";
    return k.length === 1 && k >= "@" && k <= "_" ? esc + String.fromCharCode(k.charCodeAt(0) - 64) : "";
  }
  return e.altKey && e.key.length === 1 ? "\x1b" + e.key : "";
}

// terminal is the element of a session: onInput gets text to send, onSize the size
// in characters, onLeave is called for the key that gives the focus back.
export function terminal({ label, onInput, onSize, onLeave }) {
  const rows = h("div", { class: "rows" }), past = h("div", { class: "past" });
  const view = h("div", { class: "term-view", role: "log", "aria-label": label, "aria-live": "off", tabIndex: 0 }, past, rows);
  const field = h("textarea", { class: "term-keys", "aria-label": "Keyboard of " + label, "aria-describedby": "term-help", autocapitalize: "off", autocomplete: "off", spellcheck: "false", rows: 1 });
  const el = h("div", { class: "term" }, view, field);
  const screen = new Screen(80, 24, onInput);
  let due = 0, drawn = 0, follow = true;

  const line = (row, at) => {
    const div = document.createElement("div");
    let text = "", style = "";
    const flush = () => { if (text) div.append(style ? h("span", { class: style }, text) : text); text = ""; };
    for (let x = 0; x < Math.max(row.length, at + 1); x++) {
      const cell = row[x] || blank, s = x === at ? (cell.at + " cursor").trim() : cell.at;
      if (s !== style) { flush(); style = s; }
      text += cell.ch;
    }
    flush();
    if (!div.firstChild) div.append("\u00a0");
    return div;
  };
  function draw() {
    due = 0;
    for (const row of screen.past.splice(0)) { past.append(line(row, -1)); drawn++; }
    for (; drawn > keptLines; drawn--) past.firstChild.remove();
    while (rows.childElementCount > screen.rows) rows.lastChild.remove();
    while (rows.childElementCount < screen.rows) rows.append(line([], -1));
    screen.dirty.add(screen.y);
    for (const y of screen.dirty) if (screen.grid[y]) rows.children[y].replaceWith(line(screen.grid[y], y === screen.y && screen.shown ? screen.x : -1));
    screen.dirty.clear();
    if (follow) view.scrollTop = view.scrollHeight;
  }
  const later = () => { due ||= requestAnimationFrame(draw); };
  view.addEventListener("scroll", () => { follow = view.scrollTop + view.clientHeight > view.scrollHeight - 20; });
  view.addEventListener("click", () => { if (String(getSelection()) === "") field.focus({ preventScroll: true }); });
  view.addEventListener("keydown", (e) => { if (e.key === "Enter") { e.preventDefault(); field.focus({ preventScroll: true }); } });
  field.addEventListener("keydown", (e) => {
    if (e.ctrlKey && e.key === "]") { e.preventDefault(); onLeave(); return; }
    if (e.ctrlKey && e.key.toLowerCase() === "c" && String(getSelection()) !== "") return; // copies
    const bytes = bytesOf(e, screen.appKeys);
    if (bytes) { e.preventDefault(); follow = true; onInput(bytes); }
  });
  // Everything else is what the keyboard, an input method or the clipboard wrote.
  const typed = () => { const text = field.value; field.value = ""; if (text) { follow = true; onInput(text.replace(/\r?\n/g, "\r")); } };
  field.addEventListener("input", (e) => { if (!e.isComposing) typed(); });
  field.addEventListener("compositionend", typed);

  function fit() {
    const text = h("span", {}, "0".repeat(20)), probe = h("div", {}, text);
    rows.append(probe);
    const width = text.getBoundingClientRect().width / 20, height = probe.getBoundingClientRect().height;
    probe.remove();
    const cols = Math.floor((view.clientWidth - 16) / width), lines = Math.floor((view.clientHeight - 16) / height);
    if (!(cols > 9 && lines > 3) || (cols === screen.cols && lines === screen.rows)) return;
    screen.resize(Math.min(cols, 500), Math.min(lines, 200));
    later();
    onSize(screen.cols, screen.rows);
  }
  const watch = new ResizeObserver(fit);
  watch.observe(view);
  return {
    el, write(text) { screen.write(text); later(); }, focus() { field.focus({ preventScroll: true }); },
    size: () => ({ columns: screen.cols, rows: screen.rows }), fit,
    end() { screen.shown = false; field.disabled = true; later(); },
    close() { watch.disconnect(); cancelAnimationFrame(due); },
  };
}
