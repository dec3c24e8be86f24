// @ts-check
// Exec: a command in a workload, or its console, in a terminal. Loaded when its tab is first opened.
import { get, query, session } from "./api.js";
import { card, h, replace } from "./dom.js";
import { terminal } from "./term.js";

/**
 * Splits a command line at spaces; single and double quotes hold a word together. No other character is special,
 * because no shell reads it. Throws on an open quote.
 * @param {string} line
 */
export function words(line) {
  const out = [];
  let word = "", quote = "", quoted = false;
  for (const c of line) {
    if (quote) {
      if (c === quote) quote = "";
      else word += c;
    } else if (c === "'" || c === '"') {
      quote = c;
      quoted = true;
    } else if (/\s/.test(c)) {
      if (quoted || word) out.push(word);
      word = "";
      quoted = false;
    } else word += c;
  }
  if (quote) throw new Error(`a quote ${quote} is not closed`);
  if (quoted || word) out.push(word);
  return out;
}

const base64 = (bytes) => btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""));
const bytesOf = (text) => Uint8Array.from(atob(text || ""), (c) => c.charCodeAt(0));
// url64 returns text as base64url without padding, because a websocket's subprotocol must not contain the characters +,
// / and =.
const url64 = (text) => base64(new TextEncoder().encode(text)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const maxInput = 16384; // bytes per message
const help = "The audit log records who ran which program, and a hash of the whole command. "
  + "Ctrl+] moves the keyboard focus out of the terminal. "
  + "Processes that the command leaves running end with the session, and the session ends with this page.";

/**
 * Shows the terminal in body. The session ends when signal aborts, because the user left the page or the tab.
 * @param {HTMLElement} body @param {AbortSignal} signal @param {any} w the workload
 */
export function showExec(body, signal, w) {
  const id = w.workload_id, machine = w.type === "vm";
  const path = "/workloads/" + encodeURIComponent(id) + "/exec";
  const address = new URL("../v1" + path + query({ cluster_id: session.cluster }), location.href);
  address.protocol = address.protocol.replace("http", "ws");
  const field = (id, value) => h("input", { id, value, autocapitalize: "off", autocomplete: "off", spellcheck: "false" });
  const command = field("exec-command", "sh"), service = field("exec-service", "");
  const run = h("button", { class: "main", type: "submit" }, "Run");
  const attach = h("button", { type: "button", onclick: () => open(true) }, "Console");
  const quit = () => leave("You ended the session.");
  const end = h("button", { type: "button", class: "danger", disabled: true, onclick: quit }, "End session");
  const note = h("p", { class: "quiet", role: "status", tabIndex: -1 }, "No session is open."), screen = h("div", {});
  const submit = (e) => {
    e.preventDefault();
    open(false);
  };
  replace(body, card("",
    h("form", { class: "filters", onsubmit: submit },
      !machine && h("label", {}, "Command", command), w.type === "compose" && h("label", {}, "Service", service),
      !machine && run, attach, end),
    h("p", { class: "quiet", id: "term-help" }, help), note, screen));
  /** @type {WebSocket | null} */
  let ws = null;
  /** @type {ReturnType<typeof terminal> | null} */
  let term = null;

  function idle(text, bad) {
    note.textContent = text;
    note.className = bad ? "err" : "quiet";
    for (const b of [run, attach, command, service]) b.disabled = false;
    const held = document.activeElement === end || term?.el.contains(document.activeElement);
    end.disabled = true;
    term?.end();
    // The command field does not get the focus, because a key that is still held down would run the
    // command again.
    if (held && !signal.aborted) note.focus();
  }
  function leave(text) {
    const old = ws;
    ws = null;
    old?.close(1000);
    if (old) idle(text);
  }
  signal.addEventListener("abort", () => {
    leave("");
    term?.close();
  });

  function open(console) {
    /** @type {string[]} */
    let line = [];
    try {
      if (!console) line = words(command.value);
    } catch (/** @type {any} */ e) {
      idle("Command: " + e.message, true);
      return;
    }
    if (!console && line.length === 0) {
      idle("Command: write a program and its arguments, e.g. sh", true);
      return;
    }
    for (const b of [run, attach, command, service]) b.disabled = true;
    note.className = "quiet";
    note.textContent = "Opening …";
    term?.close();
    /** @type {WebSocket | null} */
    let mine = null;
    const send = (m) => {
      if (mine && mine === ws && mine.readyState === WebSocket.OPEN) mine.send(JSON.stringify(m));
    };
    const encoder = new TextEncoder();
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    const shown = terminal({
      label: "terminal of " + id,
      onInput: (text) => {
        const bytes = encoder.encode(text);
        for (let i = 0; i < bytes.length; i += maxInput) send({ input: base64(bytes.subarray(i, i + maxInput)) });
      },
      onSize: (columns, rows) => send({ resize: { columns, rows } }),
      onLeave: () => end.focus(),
    });
    term = shown;
    replace(screen, shown.el);
    shown.fit();
    const protocols = ["persys.exec.v1"];
    if (session.token) protocols.push("persys.token." + url64(session.token));
    const socket = new WebSocket(address, protocols);
    mine = ws = socket;
    let opened = false, over = false;
    socket.onopen = () => {
      const target = console ? { console } : { command: line };
      send({ open: { ...target, ...(service.value && { service: service.value }), tty: true, input: true, size: shown.size() } });
    };
    socket.onmessage = (e) => {
      if (socket !== ws) return;
      const m = JSON.parse(e.data);
      if (m.opened) {
        opened = true;
        const s = Number(m.opened.idle_seconds || 0);
        note.textContent = `Open on ${m.opened.node_id}` + (s ? `; ends after ${Math.round(s / 60)} min of silence.` : ".");
        end.disabled = false;
        shown.focus();
      } else if (m.output) {
        const decoder = m.output.stream === "stderr" ? decoders.stderr : decoders.stdout;
        shown.write(decoder.decode(bytesOf(m.output.data), { stream: true }));
      } else if (m.exit) {
        over = true;
        idle(`The command ended with exit code ${m.exit.code || 0}.`);
      } else if (m.error) {
        over = true;
        idle(m.error.message, true);
      }
    };
    socket.onclose = async () => {
      if (socket !== ws) return;
      ws = null;
      if (over) return;
      let why = opened ? "The session was interrupted." : "The session did not open.";
      // A browser hides why a websocket was refused. A plain request to the same address gets the reason.
      if (!opened) {
        try {
          await get(path, signal);
        } catch (/** @type {any} */ e) {
          if (e.status && e.status !== 426) why = e.message;
        }
      }
      if (!signal.aborted) idle(why, true);
    };
  }
}
