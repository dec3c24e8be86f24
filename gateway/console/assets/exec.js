// Exec: a command in a workload, or its console, in a terminal. Read when its tab
// is opened for the first time.
import { get, query, session } from "./api.js";
import { card, h, replace } from "./dom.js";
import { terminal } from "./term.js";

// words splits a command line as people write it: spaces separate, quotes hold
// together. Nothing else is special, since no shell reads it.
export function words(line) {
  const out = [];
  let word = "", quote = "", some = false;
  for (const c of line) {
    if (quote) { if (c === quote) quote = ""; else word += c; }
    else if (c === "'" || c === '"') { quote = c; some = true; }
    else if (/\s/.test(c)) { if (some || word) out.push(word); word = ""; some = false; }
    else word += c;
  }
  if (quote) throw new Error(`a quote ${quote} is not closed`);
  if (some || word) out.push(word);
  return out;
}

const base64 = (bytes) => btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""));
const url64 = (text) => base64(new TextEncoder().encode(text)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

// showExec fills body. The session ends with signal, which is when the page or the
// tab is left.
export function showExec(body, signal, w) {
  const id = w.workload_id, machine = w.type === "vm";
  const path = "/workloads/" + encodeURIComponent(id) + "/exec";
  const address = new URL("../v1" + path + query({ cluster_id: session.cluster }), location.href);
  address.protocol = address.protocol.replace("http", "ws");
  const command = h("input", { id: "exec-command", value: "sh", autocapitalize: "off", autocomplete: "off", spellcheck: "false" });
  const service = h("input", { id: "exec-service", autocapitalize: "off", autocomplete: "off", spellcheck: "false" });
  const run = h("button", { class: "main", type: "submit" }, "Run"), attach = h("button", { type: "button", onclick: () => open(true) }, "Console");
  const end = h("button", { type: "button", class: "danger", disabled: true, onclick: () => leave("You ended the session.") }, "End session");
  const note = h("p", { class: "quiet", role: "status", tabIndex: -1 }, "No session is open."), screen = h("div", {});
  replace(body, card("",
    h("form", { class: "filters", onsubmit: (e) => { e.preventDefault(); open(false); } },
      !machine && h("label", {}, "Command", command), w.type === "compose" && h("label", {}, "Service", service),
      !machine && run, attach, end),
    h("p", { class: "quiet", id: "term-help" }, "Who ran what is kept in the audit. Ctrl+] leaves the keyboard of the terminal. What the command left running ends with the session, and the session with this page."),
    note, screen));
  let ws = null, term = null;

  function idle(text, bad) {
    note.textContent = text;
    note.className = bad ? "err" : "quiet";
    for (const b of [run, attach, command, service]) b.disabled = false;
    const held = document.activeElement === end || term?.el.contains(document.activeElement);
    end.disabled = true;
    term?.end();
    // Not the command: the Enter that ended a shell, held a little too long, would run it again.
    if (held && !signal.aborted) note.focus();
  }
  function leave(text) {
    const old = ws;
    ws = null;
    old?.close(1000);
    if (old) idle(text);
  }
  signal.addEventListener("abort", () => { leave(""); term?.close(); });

  function open(console) {
    let line;
    try { line = console ? [] : words(command.value); } catch (e) { idle("Command: " + e.message, true); return; }
    if (!console && line.length === 0) { idle("Command: write a program and its arguments, e.g. sh", true); return; }
    for (const b of [run, attach, command, service]) b.disabled = true;
    note.className = "quiet";
    note.textContent = "Opening …";
    term?.close();
    let mine = null;
    const send = (m) => { if (mine && mine === ws && mine.readyState === WebSocket.OPEN) mine.send(JSON.stringify(m)); };
    const encode = new TextEncoder(), decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    term = terminal({ label: "terminal of " + id, onInput: (text) => {
      const bytes = encode.encode(text);
      for (let i = 0; i < bytes.length; i += 16384) send({ input: base64(bytes.subarray(i, i + 16384)) });
    }, onSize: (columns, rows) => send({ resize: { columns, rows } }), onLeave: () => end.focus() });
    const shown = term;
    replace(screen, term.el);
    term.fit();
    mine = new WebSocket(address, ["persys.exec.v1", ...(session.token ? ["persys.token." + url64(session.token)] : [])]);
    let opened = false, over = false;
    ws = mine;
    mine.onopen = () => send({ open: { ...(console ? { console } : { command: line }), ...(service.value && { service: service.value }), tty: true, input: true, size: term.size() } });
    mine.onmessage = (e) => {
      if (mine !== ws) return;
      const m = JSON.parse(e.data);
      if (m.opened) {
        opened = true;
        const s = Number(m.opened.idle_seconds || 0);
        note.textContent = `Open on ${m.opened.node_id}` + (s ? `; ends after ${Math.round(s / 60)} min of silence.` : ".");
        end.disabled = false;
        shown.focus();
      } else if (m.output) {
        const bytes = Uint8Array.from(atob(m.output.data || ""), (c) => c.charCodeAt(0));
        shown.write((decoders[m.output.stream] || decoders.stdout).decode(bytes, { stream: true }));
      } else if (m.exit) { over = true; idle(`The command ended with exit code ${m.exit.code || 0}.`); }
      else if (m.error) { over = true; idle(m.error.message, true); }
    };
    mine.onclose = async () => {
      if (mine !== ws) return;
      ws = null;
      if (over) return;
      let why = opened ? "The session broke off." : "The session did not open.";
      // A browser does not say why a websocket was refused; the same address does.
      if (!opened) try { await get(path, signal); } catch (e) { if (e.status && e.status !== 426) why = e.message; }
      if (!signal.aborted) idle(why, true);
    };
  }
}
