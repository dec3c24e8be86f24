// @ts-check
// The pages of objects that workloads of a cluster share: namespaces, networks, secrets and configs, volumes and
// policies. Loaded when one of these pages is first opened.
import { call, del, get, permissions, query } from "./api.js";
import {
  age, card, confirmed, cores, facts, gb, h, int, labelTexts, meter, mib, nodeLink, replace, state, table, toast, workloadLink,
} from "./dom.js";
import { refresh } from "./live.js";

/** @typedef {{id: string, label: string, value?: string, hint?: string, optional?: boolean, type?: string}} Field
 * type is that of an input, or textarea for a text that is taken as it is */

const path = (/** @type {string[]} */ ...parts) => "/" + parts.map(encodeURIComponent).join("/");
const num = (/** @type {string} */ title) => ({ title, num: true });

/**
 * Shows a dialog with text fields. @param {string} title @param {Field[]} fields @param {string} verb
 * @returns {Promise<Record<string, string> | null>} the values by id; null if the dialog was cancelled
 */
async function form(title, fields, verb) {
  const inputs = fields.map((f) => {
    const common = { id: f.id, name: f.id, required: !f.optional, placeholder: f.hint, autocomplete: "off" };
    if (f.type === "textarea") return h("textarea", { ...common, rows: "6", spellcheck: "false" });
    return h("input", { ...common, type: f.type || "text", value: f.value || "" });
  });
  const rows = fields.map((f, i) => h("label", {}, f.label, inputs[i]));
  if (!await confirmed(title, h("div", { class: "form" }, rows), verb)) return null;
  return Object.fromEntries(fields.map((f, i) => [f.id, f.type === "textarea" ? inputs[i].value : inputs[i].value.trim()]));
}

/**
 * Asks the person to type the name of the object that is to be deleted.
 * @param {string} what @param {string} name @param {string} text
 */
async function typed(what, name, text) {
  const input = h("input", { id: "typed-name", autocomplete: "off" });
  const body = [h("p", {}, text), h("div", { class: "form" }, h("label", {}, `Type ${name} to confirm`, input))];
  if (!await confirmed(`Delete ${what} ${name}?`, body, "Delete", true)) return false;
  if (input.value.trim() === name) return true;
  toast(`Nothing was deleted, because the typed name is not ${name}.`, true);
  return false;
}

/**
 * Returns for each namespace of a list whether the caller may change what is in it.
 * @param {(namespace?: string) => Promise<boolean[]>} rights @param {any[]} list @returns {Promise<Map<string, boolean>>}
 */
async function rightsIn(rights, list) {
  const names = [...new Set(list.map((o) => o.namespace))];
  return new Map(await Promise.all(names.map(async (n) => /** @type {[string, boolean]} */([n, (await rights(n))[0]]))));
}

// page draws a page and its actions, which call act with a text for success and a function that makes the change.
/**
 * @param {HTMLElement} main @param {AbortSignal} signal @param {string} title
 * @param {(act: (done: string | (() => string), fn: () => Promise<any>) => Promise<void>) => Promise<any[]>} content
 */
async function page(main, signal, title, content) {
  const act = async (/** @type {string | (() => string)} */ done, /** @type {() => Promise<any>} */ fn) => {
    try {
      await fn();
      toast(typeof done === "string" ? done : done());
    } catch (/** @type {any} */ e) {
      toast(e.message, true);
    }
    await show();
  };
  async function show() {
    const parts = await content(act);
    if (!signal.aborted) replace(main, h("h1", {}, title), parts);
  }
  await refresh(show, signal, { every: 10000 });
}

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function namespaces(main, signal) {
  const rights = permissions(["namespaces"], signal);
  await page(main, signal, "Namespaces", async (act) => {
    const [[may], { namespaces: list = [] }] = await Promise.all([rights("*"), get("/namespaces", signal)]);
    /** @param {any} n */
    async function edit(n) {
      const quota = n?.quota || {};
      /** @type {Field[]} */
      const limits = [
        { id: "quota-workloads", label: "Workloads, at most", value: quota.workloads },
        { id: "quota-cpu", label: "CPU in millicores, at most", value: quota.cpu_millicores },
        { id: "quota-memory", label: "Memory in MiB, at most", value: quota.memory_mib },
        { id: "quota-disk", label: "Disk in GB, at most", value: quota.disk_gb },
      ].map((f) => ({ ...f, type: "number", optional: true, hint: "no limit" }));
      /** @type {Field[]} */
      const fields = [
        ...(n ? [] : [{ id: "namespace-name", label: "Name" }]),
        { id: "namespace-description", label: "Description", value: n?.description, optional: true }, ...limits,
      ];
      const v = await form(n ? `Change ${n.name}` : "New namespace", fields, n ? "Change" : "Create");
      if (!v) return;
      const name = n?.name || v["namespace-name"];
      await act(n ? `${name} is changed.` : `${name} is created.`, () => call("PUT", path("namespaces", name), {
        description: v["namespace-description"], users: n?.users, max_priority: n?.max_priority,
        allow_scaling: n?.allow_scaling, node_labels: n?.node_labels, if_version: n?.version || "0", quota: {
          workloads: v["quota-workloads"] || 0, cpu_millicores: v["quota-cpu"] || 0,
          memory_mib: v["quota-memory"] || 0, disk_gb: v["quota-disk"] || 0,
        },
      }));
    }
    async function remove(n) {
      const text = "A namespace with workloads, secrets, configs or networks cannot be deleted.";
      if (!await typed("namespace", n.name, text)) return;
      await act(`${n.name} is deleted.`, () => del(path("namespaces", n.name)));
    }
    const used = (n, key, unit) => meter("", int(n.used?.[key]), int(n.quota?.[key]), unit);
    const row = (n) => [
      [h("a", { href: "#/workloads?namespace=" + encodeURIComponent(n.name), class: "id", title: n.name }, n.name),
      n.over_quota && [" ", state("degraded", "over its quota")], n.description && h("div", { class: "quiet" }, n.description)],
      used(n, "workloads", String), used(n, "cpu_millicores", cores), used(n, "memory_mib", mib), used(n, "disk_gb", gb),
      (n.users || []).join(", ") || h("span", { class: "quiet" }, "everybody with rights in it"),
      labelTexts(n.node_labels).join(" "),
      may && [h("button", { onclick: () => edit(n) }, "Change …"), " ",
      n.name !== "default" && h("button", { class: "danger", onclick: () => remove(n) }, "Delete …")],
    ];
    return [
      may && h("div", { class: "actions" }, h("button", { onclick: () => edit(null) }, "New namespace …")),
      card("", table(["Namespace", "Workloads", "CPU", "Memory", "Disk", "Users", "Nodes with", ""], list.map(row), "")),
      h("p", { class: "quiet" }, "CPU, memory and disk are what the workloads of a namespace reserve, stopped ones included."),
    ];
  });
}

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function networks(main, signal) {
  const rights = permissions(["deploy"], signal);
  await page(main, signal, "Networks", async (act) => {
    const [[may], { networks: list = [] }] = await Promise.all([rights(), get("/networks", signal)]);
    const changes = await rightsIn(rights, list);
    async function create() {
      const v = await form("New network", [
        { id: "network-name", label: "Name" }, { id: "network-namespace", label: "Namespace", optional: true, hint: "default" },
        { id: "network-subnet", label: "Subnet", optional: true, hint: "a free part of the pool" },
      ], "Create");
      if (!v) return;
      await act(`${v["network-name"]} is created.`, () => call("PUT", path("networks", v["network-name"]),
        { namespace: v["network-namespace"], subnet: v["network-subnet"] }));
    }
    async function remove(n) {
      const text = h("p", {}, "A network that workloads use cannot be deleted.");
      if (!await confirmed(`Delete network ${n.name}?`, text, "Delete", true)) return;
      await act(`${n.name} is deleted.`, () => del(path("networks", n.name) + query({ namespace: n.namespace })));
    }
    const row = (n) => [
      h("span", { class: "id", title: n.name }, n.name), n.namespace, h("span", { class: "mono" }, n.cidr),
      `${int(n.nodes)} of ${int(n.capacity)}`, int(n.workloads), int(n.mtu), age(n.created_at),
      changes.get(n.namespace) && h("button", { class: "danger", onclick: () => remove(n) }, "Delete …"),
    ];
    return [
      may && h("div", { class: "actions" }, h("button", { onclick: create }, "New network …")),
      card("", table(["Network", "Namespace", "Subnet", num("Nodes"), num("Workloads"), num("MTU"), num("Age"), ""],
        list.map(row), "There is no network yet. Containers that name one under networks reach each other on every node.")),
    ];
  });
}

/** Encodes a text as base64, which the API uses for bytes. @param {string} text */
function base64(text) {
  return btoa(new TextEncoder().encode(text).reduce((out, b) => out + String.fromCharCode(b), ""));
}

// secrets shows the secrets and configs, and never a value.
/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function secrets(main, signal) {
  const rights = permissions(["deploy"], signal);
  await page(main, signal, "Secrets and configs", async (act) => {
    const [[may], ...lists] = await Promise.all([
      rights(), get("/objects/secret", signal), get("/objects/config", signal),
    ]);
    const list = lists.flatMap((l) => l.objects || []), changes = await rightsIn(rights, list);
    const at = (o) => path("objects", o.kind, o.name);
    const said = (o, r) => [
      `${o.name} has version ${r.version}.`, r.workload_ids?.length && `It goes to ${r.workload_ids.join(", ")}.`,
      ...(r.warnings || []),
    ].filter(Boolean).join(" ");
    /** @param {string} kind @param {any} o the object; null for a new one */
    async function put(kind, o) {
      /** @type {Field[]} */
      const fields = [
        ...(o ? [] : [
          { id: "object-name", label: "Name" }, { id: "object-namespace", label: "Namespace", optional: true, hint: "default" },
        ]),
        { id: "object-value", label: "Value", type: "textarea" },
      ];
      const v = await form(o ? `New version of ${kind} ${o.name}` : `New ${kind}`, fields, o ? "Put" : "Create");
      if (!v) return;
      const to = { kind, name: o?.name || v["object-name"] };
      const namespace = o?.namespace || v["object-namespace"];
      await change(() => call("PUT", at(to), { namespace, data: base64(v["object-value"]) }), to);
    }
    /** @param {any} o */
    async function back(o) {
      const v = await form(`Roll back ${o.kind} ${o.name}`, [
        { id: "object-version", label: "To version", type: "number", optional: true, hint: "the version before" },
      ], "Roll back");
      if (!v) return;
      await change(() => call("POST", at(o) + "/rollback", { namespace: o.namespace, number: v["object-version"] || 0 }), o);
    }
    /** @param {() => Promise<any>} fn @param {any} o */
    async function change(fn, o) {
      let text = "";
      const done = async () => {
        const r = await fn();
        text = r.unchanged ? `${o.name} has this value already.` : said(o, r);
      };
      await act(() => text, done);
    }
    /** @param {any} o */
    async function remove(o) {
      if (!await typed(o.kind, o.name, `All versions are lost. A ${o.kind} that workloads use cannot be deleted.`)) return;
      await act(`${o.name} is deleted.`, () => del(at(o) + query({ namespace: o.namespace })));
    }
    const version = (v) => h("li", {}, `${v.number}: ${v.size} bytes, ${v.by || "unknown"}, `, age(v.at),
      v.from > 0 && `, the value of version ${v.from}`);
    const used = (u) => h("div", {}, workloadLink(u.workload_id),
      h("span", { class: "quiet" }, int(u.version) ? ` version ${u.version}` : " the present version"));
    const row = (o) => [
      h("span", { class: "id", title: o.name }, o.name), o.kind, o.namespace,
      h("details", {}, h("summary", {}, `version ${o.versions[0].number}`), h("ul", {}, o.versions.map(version))),
      age(o.versions[0].at), (o.users || []).map(used),
      changes.get(o.namespace) && [h("button", { onclick: () => put(o.kind, o) }, "New version …"), " ",
      o.versions.length > 1 && [h("button", { onclick: () => back(o) }, "Roll back …"), " "],
      h("button", { class: "danger", onclick: () => remove(o) }, "Delete …")],
    ];
    return [
      may && h("div", { class: "actions" }, h("button", { onclick: () => put("secret", null) }, "New secret …"), " ",
        h("button", { onclick: () => put("config", null) }, "New config …")),
      card("", table(["Name", "Kind", "Namespace", "Versions", num("Age"), "Used by", ""], list.map(row),
        "There is no secret and no config yet. Workloads name those that they use under secrets and configs.")),
      h("p", { class: "quiet" }, "A new version is an update of the workloads that use it, unless their on_change says "
        + "otherwise. Values are not shown here."),
    ];
  });
}

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function volumes(main, signal) {
  const rights = permissions(["volumes"], signal);
  await page(main, signal, "Volumes", async (act) => {
    const { volumes: list = [] } = await get("/volumes", signal);
    const may = await rightsIn(rights, list);
    async function remove(v) {
      const where = v.node_id ? ` on node ${v.node_id}` : "";
      if (!await typed("volume", v.name, `The data of this volume${where} is lost for good.`)) return;
      const at = v.node_id ? path("nodes", v.node_id, "volumes", v.id) : path("volumes", v.id);
      await act(`${v.name} is deleted.`, () => del(at + query({ namespace: v.namespace })));
    }
    const moving = (m) => {
      const total = int(m.total_bytes), done = int(m.done_bytes), copies = ["copying", "final"].includes(m.phase);
      const share = total && copies ? ` ${Math.floor(done * 100 / total)} %` : "";
      return h("span", { title: m.problem || m.reason || "" }, `moves from ${m.from} to ${m.to}: ${m.phase}${share}`);
    };
    const place = (v) => v.node_id ? nodeLink(v.node_id) : v.driver === "local" ? "none yet" : "all";
    const row = (v) => [
      h("span", { class: "id", title: v.id }, v.id), v.namespace, place(v),
      v.move ? [state(v.state), " ", moving(v.move)] : state(v.state),
      int(v.size_gb) ? gb(int(v.size_gb)) : "no limit", (v.workload_ids || []).map((id) => [workloadLink(id), " "]),
      v.retain_policy === "Retain" ? "kept" : "deleted", age(v.created_at),
      may.get(v.namespace) && !(v.workload_ids || []).length
      && h("button", { class: "danger", onclick: () => remove(v) }, "Delete …"),
    ];
    return [
      card("", table(["Volume", "Namespace", "Node", "State", num("Size"), "Used by", "With its workload", num("Age"), ""],
        list.map(row), "There is no volume. A workload gets one under managed_volumes.")),
    ];
  });
}

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function policies(main, signal) {
  await page(main, signal, "Policies", async () => {
    const { policies: list = [] } = await get("/policies", signal);
    const one = (p) => card(p.name, p.description && h("p", {}, p.description), facts([
      ["Made by", p.builtin ? "built in" : p.updated_by], ["Namespaces", (p.namespaces || []).join(", ") || "none"],
      ["Nodes with", (p.node_labels || []).join(" ")],
    ]), h("details", {}, h("summary", {}, "What it allows"), h("pre", { tabIndex: 0 }, p.document)));
    return [
      h("p", { class: "quiet" }, "A policy says what the workloads of its namespaces may ask of their machines."),
      h("div", { class: "grid" }, list.map(one)),
    ];
  });
}
