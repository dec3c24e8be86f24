// @ts-check
// A small terminal: the part of a VT100 and xterm that shells, editors and pagers need. It keeps a grid of
// cells and the lines that scrolled off it, draws the rows that changed once per frame, and turns keys into
// the bytes that a terminal sends.
import { h } from "./dom.js";

const maxPast = 2000; // maximum number of lines that are kept after they scrolled off the screen

/** @typedef {{ch: string, at: string}} Cell A character and its CSS classes. */
/** @type {Cell} */
const blank = { ch: " ", at: "" };
/** @param {number} rows @returns {Cell[][]} */
const emptyGrid = (rows) => Array.from({ length: rows }, () => []);

// The first sixteen colours of a terminal, as backgrounds. For text the style sheet has lighter colours.
const sixteen = ["#000000", "#8c2a24", "#1f6b3c", "#7a5200", "#1b4f94", "#6b3a80", "#1d6a70", "#9aa5b4",
  "#4a5462", "#b3423a", "#2f8f55", "#9c6d0c", "#2f6cc0", "#8a52a3", "#2b8b92", "#e6e9ee"];
/** @param {(number | undefined)[]} parts red, green and blue, 0 to 255 */
const rgb = (...parts) => "#" + [0, 1, 2].map((i) => Math.min(255, parts[i] || 0).toString(16).padStart(2, "0")).join("");
/** The colour of that number: sixteen named ones, a cube of 6 x 6 x 6, and 24 greys. @param {number} n 0 to 255 */
function palette(n) {
  if (n < 16) return sixteen[n];
  if (n > 231) return rgb(...Array(3).fill(8 + 10 * (Math.min(n, 255) - 232)));
  const level = (/** @type {number} */ v) => (v ? 55 + 40 * v : 0);
  return rgb(level(Math.floor((n - 16) / 36)), level(Math.floor((n - 16) / 6) % 6), level((n - 16) % 6));
}
/** The CSS class of one of the first eight colours. @param {number} n */
const textColour = (n) => "f" + n;

/** The state of a terminal, without elements: write text to it, read its rows. */
export class Screen {
  /** @type {Cell[][]} the lines on the screen; a line may be shorter than the screen */
  grid = [];
  /** @type {Cell[][]} lines that scrolled off since they were last drawn */
  past = [];
  /** @type {Set<number>} rows to draw again */
  dirty = new Set();
  x = 0;
  y = 0;
  // The first and the last row of the region that scrolls.
  top = 0;
  bottom = 0;
  // The CSS classes of the text that is written next, and the styles from which they are made.
  pen = "";
  /** @type {Map<string, string>} */
  styles = new Map();
  /** @type {{x: number, y: number, pen: string, styles: Map<string, string>} | null} */
  saved = null;
  /** @type {{grid: Cell[][], x: number, y: number} | null} the main screen while the alternate one is shown */
  main = null;
  // Three modes: whether cursor keys are sent in application form, whether the cursor is shown, and whether the
  // next character begins a new line.
  appKeys = false;
  shown = true;
  wrap = false;
  // The beginning of an escape sequence whose end has not been received yet.
  rest = "";

  /** @param {number} cols @param {number} rows @param {(text: string) => void} [reply] sends an answer to the program */
  constructor(cols, rows, reply = () => { }) {
    this.reply = reply;
    this.cols = cols;
    this.rows = rows;
    this.reset();
  }
  reset() {
    this.grid = emptyGrid(this.rows);
    this.x = this.y = 0;
    this.top = 0;
    this.bottom = this.rows - 1;
    this.pen = "";
    this.styles = new Map();
    this.saved = this.main = null;
    this.appKeys = this.wrap = false;
    this.shown = true;
    this.rest = "";
    this.allDirty();
  }
  allDirty() { this.dirty = new Set(this.grid.keys()); }
  resize(cols, rows) {
    while (this.grid.length > rows) {
      if (this.y < this.grid.length - 1) this.grid.pop();
      else {
        this.keepFirst();
        this.y--;
      }
    }
    while (this.grid.length < rows) this.grid.push([]);
    this.cols = cols;
    this.rows = rows;
    this.top = 0;
    this.bottom = rows - 1;
    this.x = Math.min(this.x, cols - 1);
    this.y = Math.max(0, Math.min(this.y, rows - 1));
    this.wrap = false;
    this.allDirty();
  }
  // keepFirst appends the first line to past, the lines that scrolled off; on the alternate screen it drops the line.
  keepFirst() {
    const row = this.grid.shift();
    if (!row || this.main) return;
    this.past.push(row);
    if (this.past.length > maxPast) this.past.shift();
  }
  row(y) {
    this.dirty.add(y);
    return this.grid[y];
  }

  /** Obeys a program's output. @param {string} text */
  write(text) {
    text = this.rest + text;
    this.rest = "";
    for (let i = 0; i < text.length;) {
      if (text[i] === "\x1b") {
        const n = this.escape(text.slice(i, i + 4096));
        if (n === 0) {
          this.rest = text.slice(i);
          return;
        }
        i += n;
        continue;
      }
      const code = text.codePointAt(i) || 0, ch = String.fromCodePoint(code);
      i += ch.length;
      this.character(ch, code);
    }
  }
  character(ch, code) {
    switch (ch) {
      case "\n": case "\v": case "\f": this.feed(); break;
      case "\r": this.column(0); break;
      case "\b": this.column(Math.max(0, this.x - 1)); break;
      case "\t": this.x = Math.min(this.cols - 1, (Math.floor(this.x / 8) + 1) * 8); break;
      default: if (code >= 32 && code !== 127) this.put(ch);
    }
  }
  column(x) {
    this.x = x;
    this.wrap = false;
  }
  put(ch) {
    if (this.wrap) {
      this.column(0);
      this.feed();
    }
    const row = this.row(this.y);
    if (/\p{Mn}/u.test(ch)) { // a combining mark joins the character before it
      const x = Math.max(0, this.x - 1), under = row[x];
      if (under) row[x] = { ch: under.ch + ch, at: under.at };
      return;
    }
    while (row.length < this.x) row.push(blank);
    row[this.x] = { ch, at: this.pen };
    if (this.x === this.cols - 1) this.wrap = true;
    else this.x++;
  }
  feed() {
    this.dirty.add(this.y);
    if (this.y === this.bottom) this.scroll(1);
    else if (this.y < this.rows - 1) this.y++;
    this.dirty.add(this.y);
  }
  // scroll moves the lines between top and bottom up by n, or down when n is negative.
  scroll(n) {
    for (; n > 0; n--) {
      if (this.top === 0) this.keepFirst();
      else this.grid.splice(this.top, 1);
      this.grid.splice(this.bottom, 0, []);
    }
    for (; n < 0; n++) {
      this.grid.splice(this.bottom, 1);
      this.grid.splice(this.top, 0, []);
    }
    for (let y = this.top; y <= this.bottom; y++) this.dirty.add(y);
  }

  // escape carries out one escape sequence and returns its length, or 0 if its end has not been received
  // yet.
  escape(s) {
    if (s.length < 2) return 0;
    if (s[1] === "[") {
      const m = /^\x1b\[([<=>?]?)([\d;:]*)([ -/]*)([@-~])/.exec(s);
      if (!m) return s.length > 64 || /^\x1b\[[^@-~]*[^ -~]/.test(s) ? 2 : 0;
      const numbers = m[2].split(/[;:]/).map((v) => (v === "" ? undefined : Math.min(9999, Number(v))));
      if (!m[3]) this.control(m[1], numbers, m[4]);
      return m[0].length;
    }
    if ("]PX^_".includes(s[1])) { // a title or another string, which is not shown; the next sequence also ends it
      const m = /^\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|(?=\x1b[^\\]))/.exec(s);
      return m ? m[0].length : s.length >= 4096 ? 2 : 0;
    }
    if ("()*+#%".includes(s[1])) return s.length < 3 ? 0 : 3;
    switch (s[1]) {
      case "7": this.save(); break;
      case "8": this.restore(); break;
      case "D": this.feed(); break;
      case "E":
        this.x = 0;
        this.feed();
        break;
      case "M":
        if (this.y === this.top) this.scroll(-1);
        else this.move(this.x, this.y - 1);
        break;
      case "c": this.reset(); break;
    }
    return 2;
  }
  save() { this.saved = { x: this.x, y: this.y, pen: this.pen, styles: new Map(this.styles) }; }
  restore() {
    const s = this.saved;
    this.move(s?.x || 0, s?.y || 0);
    if (!s) return;
    this.pen = s.pen;
    this.styles = new Map(s.styles);
  }
  move(x, y) {
    this.dirty.add(this.y);
    this.column(Math.max(0, Math.min(this.cols - 1, x)));
    this.y = Math.max(0, Math.min(this.rows - 1, y));
    this.dirty.add(this.y);
  }
  // control carries out a control sequence: ESC [ mark numbers verb.
  control(mark, p, verb) {
    if (mark === "?" && (verb === "h" || verb === "l")) for (const mode of p) this.mode(mode, verb === "h");
    if (mark) return;
    const n = Math.max(1, p[0] ?? 1);
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
      case "J": this.clearScreen(p[0] || 0); break;
      case "K": this.clearLine(p[0] || 0); break;
      case "X": this.clear(this.y, this.x, this.x + n); break;
      case "P": this.row(this.y).splice(this.x, n); break;
      case "@": this.insert(Math.min(n, this.cols)); break;
      case "L": this.shiftLines(-Math.min(n, this.rows)); break;
      case "M": this.shiftLines(Math.min(n, this.rows)); break;
      case "S": this.scroll(Math.min(n, this.rows)); break;
      case "T": this.scroll(-Math.min(n, this.rows)); break;
      case "r": this.region(n - 1, Math.min(this.rows, p[1] || this.rows) - 1); break;
      case "s": this.save(); break;
      case "u": this.restore(); break;
      case "n":
        if (p[0] === 6) this.reply(`\x1b[${this.y + 1};${this.x + 1}R`);
        else if (p[0] === 5) this.reply("\x1b[0n");
        break;
      case "c": this.reply("\x1b[?6c"); break;
      case "m": this.style(p); break;
    }
  }
  // clearScreen clears a part of the screen: 0 from the cursor to the end, 1 from the start to the
  // cursor, 2 the whole screen, 3 also the lines that scrolled off.
  clearScreen(part) {
    if (part < 2) this.clearLine(part);
    for (let y = 0; y < this.rows; y++) {
      if (part >= 2 || (part === 0 && y > this.y) || (part === 1 && y < this.y)) this.clearRow(y);
    }
    if (part === 3) this.past.length = 0;
  }
  // clearLine clears a part of the cursor's line: 0 from the cursor to the end, 1 from the start to the
  // cursor, 2 the whole line.
  clearLine(part) {
    const row = this.row(this.y);
    if (part === 0) row.length = Math.min(row.length, this.x);
    else if (part === 1) this.clear(this.y, 0, this.x + 1);
    else this.clearRow(this.y);
  }
  clearRow(y) {
    this.grid[y] = [];
    this.dirty.add(y);
  }
  clear(y, from, to) {
    const row = this.row(y);
    for (let x = from; x < Math.min(to, row.length); x++) row[x] = blank;
  }
  insert(n) {
    const row = this.row(this.y);
    while (row.length < this.x) row.push(blank);
    row.splice(this.x, 0, ...Array(n).fill(blank));
    row.length = Math.min(row.length, this.cols);
  }
  // shiftLines deletes n lines at the cursor, or inserts when n is negative. Deleted lines are not kept
  // as scrolled-off lines.
  shiftLines(n) {
    if (this.y < this.top || this.y > this.bottom) return;
    const { top, main } = this;
    this.top = this.y;
    this.main ||= { grid: [], x: 0, y: 0 };
    this.scroll(n);
    this.main = main;
    this.top = top;
  }
  region(top, bottom) {
    if (top >= bottom) return;
    this.top = top;
    this.bottom = bottom;
    this.move(0, 0);
  }
  mode(mode, on) {
    if (mode === 1) this.appKeys = on;
    if (mode === 25) {
      this.shown = on;
      this.dirty.add(this.y);
    }
    if (mode === 47 || mode === 1047 || mode === 1049) this.alternate(on);
  }
  // alternate shows the alternate screen, which editors and pagers use, or the main screen again.
  alternate(on) {
    const main = this.main;
    if (on && !main) {
      this.main = { grid: this.grid, x: this.x, y: this.y };
      this.grid = emptyGrid(this.rows);
      this.move(0, 0);
    } else if (!on && main) {
      this.main = null;
      this.grid = main.grid;
      while (this.grid.length < this.rows) this.grid.push([]);
      while (this.grid.length > this.rows) this.keepFirst();
      this.move(main.x, main.y);
    }
    this.top = 0;
    this.bottom = this.rows - 1;
    this.allDirty();
  }
  // style sets weight, underline, inversion and colours of the text.
  style(p) {
    const s = this.styles;
    for (let i = 0; i < p.length; i++) {
      const v = p[i] || 0;
      if (v === 0) s.clear();
      else if (v === 1) s.set("b", "b");
      else if (v === 2) s.set("b", "d");
      else if (v === 22) s.delete("b");
      else if (v === 4) s.set("u", "u");
      else if (v === 24) s.delete("u");
      else if (v === 7) s.set("i", "i");
      else if (v === 27) s.delete("i");
      else if (v === 39) s.delete("f");
      else if (v === 49) s.delete("k");
      else if (v >= 30 && v <= 37) s.set("f", textColour(v - 30));
      else if (v >= 90 && v <= 97) s.set("f", textColour(v - 90));
      else if (v >= 40 && v <= 47) s.set("k", "k" + palette(v - 40));
      else if (v >= 100 && v <= 107) s.set("k", "k" + palette(v - 92));
      else if (v === 38 || v === 48) { // 38;5;N or 38;2;R;G;B; 48 is the background
        const indexed = p[i + 1] === 5;
        const colour = indexed ? palette(p[i + 2] || 0) : rgb(p[i + 2], p[i + 3], p[i + 4]);
        if (v === 48) s.set("k", "k" + colour);
        else s.set("f", indexed && (p[i + 2] || 0) < 16 ? textColour((p[i + 2] || 0) % 8) : "c" + colour);
        i += indexed ? 2 : 4;
      }
    }
    this.pen = [...s.values()].sort().join(" ");
  }
}

/** @type {Record<string, string>} */
const keys = {
  Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b", Insert: "\x1b[2~", Delete: "\x1b[3~", PageUp: "\x1b[5~",
  PageDown: "\x1b[6~", F1: "\x1bOP", F2: "\x1bOQ", F3: "\x1bOR", F4: "\x1bOS", F5: "\x1b[15~", F6: "\x1b[17~", F7: "\x1b[18~",
  F8: "\x1b[19~", F9: "\x1b[20~", F10: "\x1b[21~",
};
/** @type {Record<string, string>} */
const cursor = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };

/**
 * The bytes that a terminal sends for a key, "" for a key that the browser handles.
 * @param {any} e a keyboard event @param {boolean} appKeys
 */
export function bytesOf(e, appKeys) {
  if (e.metaKey || e.isComposing) return "";
  if (e.ctrlKey && e.shiftKey) return ""; // the browser handles copy and paste itself
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

/**
 * The attributes of a text: its CSS classes, and the colours that have no class.
 * @param {string} styles of a cell
 */
function looks(styles) {
  const parts = styles.split(" "), colour = (/** @type {string} */ mark) => parts.find((p) => p.startsWith(mark + "#"))?.slice(1);
  const names = parts.filter((p) => p[1] !== "#").join(" ");
  return { class: names || undefined, style: { color: colour("c") || "", backgroundColor: colour("k") || "" } };
}

/**
 * The element of a session.
 * @param {{label: string, onInput: (text: string) => void, onSize: (columns: number, rows: number) => void,
 * onLeave: () => void}} options onInput gets text to send, onSize the size in characters, onLeave is called for
 * Ctrl+], which gives the focus back to the page
 */
export function terminal({ label, onInput, onSize, onLeave }) {
  const rows = h("div", { class: "rows" }), past = h("div", { class: "past" });
  const view = h("div", { class: "term-view", role: "log", "aria-label": label, "aria-live": "off", tabIndex: 0 }, past, rows);
  const field = h("textarea", {
    class: "term-keys", "aria-label": "Keyboard of " + label, "aria-describedby": "term-help",
    autocapitalize: "off", autocomplete: "off", spellcheck: "false", rows: 1,
  });
  const el = h("div", { class: "term" }, view, field);
  const screen = new Screen(80, 24, onInput);
  let frame = 0, pastLines = 0, follow = true;

  // line draws a row, with the cursor at column `at`, or without a cursor if `at` is -1.
  function line(row, at) {
    const div = document.createElement("div");
    let text = "", style = "";
    const flush = () => {
      if (text) div.append(style ? h("span", looks(style), text) : text);
      text = "";
    };
    for (let x = 0; x < Math.max(row.length, at + 1); x++) {
      const cell = row[x] || blank, s = x === at ? (cell.at + " cursor").trim() : cell.at;
      if (s !== style) {
        flush();
        style = s;
      }
      text += cell.ch;
    }
    flush();
    if (!div.firstChild) div.append("\u00a0");
    return div;
  }
  function draw() {
    frame = 0;
    for (const row of screen.past.splice(0)) {
      past.append(line(row, -1));
      pastLines++;
    }
    for (; pastLines > maxPast; pastLines--) past.firstChild.remove();
    while (rows.childElementCount > screen.rows) rows.lastChild.remove();
    while (rows.childElementCount < screen.rows) rows.append(line([], -1));
    screen.dirty.add(screen.y);
    for (const y of screen.dirty) {
      const at = y === screen.y && screen.shown ? screen.x : -1;
      if (screen.grid[y]) rows.children[y].replaceWith(line(screen.grid[y], at));
    }
    screen.dirty.clear();
    if (follow) view.scrollTop = view.scrollHeight;
  }
  const drawSoon = () => { frame ||= requestAnimationFrame(draw); };
  const focus = () => field.focus({ preventScroll: true });
  const selected = () => String(getSelection()) !== "";
  view.addEventListener("scroll", () => { follow = view.scrollTop + view.clientHeight > view.scrollHeight - 20; });
  view.addEventListener("click", () => { if (!selected()) focus(); });
  view.addEventListener("keydown", (e) => {
    if (e.key !== "Enter") return;
    e.preventDefault();
    focus();
  });
  field.addEventListener("keydown", (e) => {
    if (e.ctrlKey && e.key === "]") {
      e.preventDefault();
      onLeave();
      return;
    }
    if (e.ctrlKey && e.key.toLowerCase() === "c" && selected()) return; // copies the selection
    const bytes = bytesOf(e, screen.appKeys);
    if (!bytes) return;
    e.preventDefault();
    follow = true;
    onInput(bytes);
  });
  // The terminal has a hidden text field. It receives text from the keyboard, an input method or the clipboard.
  function typed() {
    const text = field.value;
    field.value = "";
    if (!text) return;
    follow = true;
    onInput(text.replace(/\r?\n/g, "\r"));
  }
  field.addEventListener("input", (e) => { if (!e.isComposing) typed(); });
  field.addEventListener("compositionend", typed);

  // fit resizes the screen to the element, measured with a row of 20 digits.
  function fit() {
    const text = h("span", {}, "0".repeat(20)), probe = h("div", {}, text);
    rows.append(probe);
    const width = text.getBoundingClientRect().width / 20, height = probe.getBoundingClientRect().height;
    probe.remove();
    const cols = Math.floor((view.clientWidth - 16) / width), lines = Math.floor((view.clientHeight - 16) / height);
    if (!(cols > 9 && lines > 3) || (cols === screen.cols && lines === screen.rows)) return;
    screen.resize(Math.min(cols, 500), Math.min(lines, 200));
    drawSoon();
    onSize(screen.cols, screen.rows);
  }
  const observer = new ResizeObserver(fit);
  observer.observe(view);
  return {
    el, focus, fit,
    /** @param {string} text */
    write(text) {
      screen.write(text);
      drawSoon();
    },
    size: () => ({ columns: screen.cols, rows: screen.rows }),
    // end shows that the session has ended; close also releases the element.
    end() {
      screen.shown = false;
      field.disabled = true;
      drawSoon();
    },
    close() {
      observer.disconnect();
      cancelAnimationFrame(frame);
    },
  };
}
