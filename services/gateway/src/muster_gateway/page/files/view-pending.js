// Why asks are pending: the sentences of explain, equal ones merged.

import { h } from "./dom.js";
import { count, grouped } from "./format.js";
import { dotted, field, options, paged } from "./parts.js";
import { whys } from "./view-applications.js";
import { foretold } from "./when.js";
import { reason } from "./words.js";

export const title = "Pending";
export const every_ms = 3000;

const PAGE = 30;

export async function load(context) {
  const { pending } = await context.get(["explain", "pending"]);
  return { asks: pending.filter((each) => each.partition === context.partition) };
}

export function render(context, { asks }) {
  const { reason: code = "", queue = "", q = "" } = context.params;
  const wanted = q.toLowerCase();
  const set = (params) => context.set({ page: "", ...params }, { again: false });
  const found = asks.filter((each) =>
    (!code || each.reason === code) && (!queue || each.queue === queue || each.queue.startsWith(`${queue}.`)) &&
    (!wanted || each.applicationID.toLowerCase().includes(wanted) || each.message.toLowerCase().includes(wanted)));
  const codes = [...new Set([...asks.map((each) => each.reason), ...(code ? [code] : [])])].sort();
  const queues = [...new Set([...asks.map((each) => each.queue), ...(queue ? [queue] : [])])].sort();
  const kept = foretold(context).filter((each) => (!code || each.code === code) && (!queue || each.queue === queue || each.queue.startsWith(`${queue}.`)) && each.id.toLowerCase().includes(wanted));
  const apps = byApplication(found, kept);
  const waiting = apps.filter((each) => each.asks.length).length;
  const { shown, pager } = paged(context, apps, PAGE, "applications with pending asks");
  return [
    h("h1", {}, "Why asks are pending"),
    h("form", { class: "filters", role: "search", "aria-label": "Filter pending asks", on: { submit: (event) => event.preventDefault() } },
      field("Text", h("input", { type: "search", name: "q", value: q, placeholder: "application or words", on: { input: (event) => set({ q: event.target.value }) } })),
      field("Reason", h("select", { name: "reason", value: code, on: { change: (event) => set({ reason: event.target.value }) } }, options(codes.map((each) => [each, reason(each)]), "All"))),
      field("Queue", h("select", { name: "queue", value: queue, on: { change: (event) => set({ queue: event.target.value }) } }, options(queues, "All")))),
    h("p", { class: "count", role: "status" }, found.length ? `${count(found.length, "ask")} of ${count(waiting, "application")} ${found.length === 1 ? "waits" : "wait"}` : ""),
    found.length ? null : h("p", { class: "empty" }, asks.length ? "No pending ask matches." : "No ask is pending: all asks are allocated."),
    shown.map((each) => h("section", { class: "card waits", key: each.id, "aria-label": `Application ${each.id}` },
      h("div", { class: "head" }, h("h2", {}, h("a", { href: context.link("applications", each.id) }, each.id)),
        h("span", { class: "note" }, h("a", { class: "plainlink", href: context.link("queues", each.queue) }, dotted(each.queue)), each.asks.length ? ` · ${grouped(each.wanted)} wanted` : " · no ask of it is listed any more")),
      whys(context, each.id, each.asks))),
    pager,
  ];
}

/** Sorted by waiting time, the longest first. `foretold`: applications that stay, whatever becomes of their asks. */
function byApplication(asks, foretold) {
  const found = new Map(foretold.map(({ id, queue, since }) => [id, { id, queue, asks: [], wanted: 0, since: since || Infinity }]));
  for (const each of asks) {
    if (!found.has(each.applicationID)) found.set(each.applicationID, { id: each.applicationID, queue: each.queue, asks: [], wanted: 0, since: Infinity });
    const app = found.get(each.applicationID);
    app.asks.push(each);
    app.wanted += each.count;
    app.since = Math.min(app.since, each.since || Infinity);
  }
  const apps = [...found.values()].sort((a, b) => a.since - b.since);
  for (const app of apps) if (!Number.isFinite(app.since)) app.since = 0;
  return apps;
}
