// The search in everything that the shown RM and partition have: applications, nodes, queues, users, groups and asks;
// and in what ended, from the history.

import { h } from "./dom.js";
import { lives } from "./ended.js";
import { ago, count, grouped, natural } from "./format.js";
import { chip, dotted } from "./parts.js";
import { reason } from "./words.js";

export const title = "Search";
export const within = "search"; // the navigation marks no view
export const every_ms = 15_000;

const NODES_MAX = 10_000; // of one answer
const SHOWN = 20; // of one kind
const PAST = 100; // lives of one kind
const PAST_EVERY_MS = 60_000;

/** Everything with a name, as {name, more, where}: `more` is searched too. */
export async function load(context) {
  const q = (context.params.q ?? "").trim();
  if (!q) return { kinds: null };
  const at = ["partition", context.partition];
  const [snapshot, active, completed, rejected, users, groups, ...past] = await Promise.all([
    context.get(["metrics", "snapshot"], { sections: "queues,nodes", nodes: NODES_MAX, partition: context.partition }),
    context.get([...at, "applications", "active"]),
    context.get([...at, "applications", "completed"]),
    context.get([...at, "applications", "rejected"]),
    context.get([...at, "usage", "users"]),
    context.get([...at, "usage", "groups"]),
    ...["application", "node", "queue"].map((kind) => ended(context, kind, q)),
  ]);
  const applications = [...active, ...completed, ...rejected];
  const kinds = [
    { title: "Applications", view: "applications", found: applications.map((each) => ({ name: each.applicationID, view: "applications", state: each.applicationState, note: dotted(each.queueName) })) },
    { title: "Asks and allocations", view: "pending", found: applications.flatMap(asksOf) },
    { title: "Nodes", view: "nodes", found: snapshot.nodes.map((each) => ({ name: each.nodeId, view: "nodes", state: each.schedulable ? "" : "Draining", note: count(each.allocations, "allocation") })) },
    { title: "Queues", view: "queues", found: snapshot.queues.map((each) => ({ name: each.path, view: "queues", state: each.state === "Active" ? "" : each.state, note: count(each.applications, "application") })) },
    { title: "Users", view: "users", found: named([...users.map((each) => each.userName), ...applications.map((each) => each.user)], "users") },
    { title: "Groups", view: "groups", found: named(groups.map((each) => each.groupName), "groups") },
  ];
  for (const [at, view] of ["applications", "nodes", "queues"].entries()) add(kinds.find((each) => each.view === view), past[at].ended);
  for (const kind of kinds) for (const each of kind.found) each.low = each.name.toLowerCase();
  return { kinds, notes: [...new Set(past.map((each) => each.note).filter(Boolean))] };
}

/** What ended with this text in its name: asked once for each text, because it is read from the history. */
async function ended(context, kind, q) {
  const known = ((context.memory.past ??= {})[`${kind} ${q}`] ??= { at: 0, found: null });
  if (!known.found || known.found.failed || Date.now() - known.at > PAST_EVERY_MS) Object.assign(known, { found: await lives(context, kind, { q, count: PAST }), at: Date.now() });
  return known.found;
}

function add(kind, ended) {
  const names = new Set(kind.found.map((each) => each.name));
  for (const each of ended) {
    if (names.has(each.name)) continue;
    names.add(each.name);
    kind.found.push({ name: each.name, view: kind.view, state: each.state, note: each.end ? `ended ${ago(each.end)}, from the history` : "from the history" });
  }
}

function asksOf(app) {
  const of = { view: "applications", thing: app.applicationID };
  return [
    ...(app.requests ?? []).map((each) => ({ ...of, name: each.allocationKey, state: "Pending", note: each.pendingReason ? reason(each.pendingReason.code) : "" })),
    ...(app.allocations ?? []).map((each) => ({ ...of, name: each.allocationKey, state: "", note: `on ${each.nodeId}` })),
  ];
}

function named(names, view) {
  return [...new Set(names.filter(Boolean))].map((name) => ({ name, view, state: "", note: "" }));
}

/** How well a name answers the text: 0 the same, 1 begins with it, 2 has it; 3 does not. */
function rank(low, wanted) {
  if (low === wanted) return 0;
  const at = low.indexOf(wanted);
  return at === 0 ? 1 : at > 0 ? 2 : 3;
}

function matching(found, wanted) {
  return found.map((each) => ({ each, rank: rank(each.low, wanted) })).filter((one) => one.rank < 3)
    .sort((a, b) => a.rank - b.rank || natural.compare(a.each.name, b.each.name)).map((one) => one.each);
}

export function render(context, { kinds, notes = [] }) {
  const q = (context.params.q ?? "").trim();
  if (!q || !kinds) return [h("h1", {}, "Search"), h("p", { class: "empty" }, q ? "Loading …" : "Type a part of a name into the field above, and press Enter.")];
  const results = kinds.map((kind) => ({ ...kind, found: matching(kind.found, q.toLowerCase()) })).filter((kind) => kind.found.length);
  const total = results.reduce((sum, kind) => sum + kind.found.length, 0);
  return [
    h("h1", {}, "Search: ", h("q", {}, q)),
    h("p", { class: "count", role: "status" }, total ? `${count(total, "match", "matches")}` : "Nothing here has this in its name."),
    results.map((kind) => section(context, kind, q)),
    notes.map((note) => h("p", { class: "note" }, note)),
  ];
}

function section(context, { title: heading, view, found }, q) {
  return h("section", { class: "card", key: heading, "aria-label": heading },
    h("h2", {}, heading, h("span", { class: "beside" }, ` ${grouped(found.length)}`)),
    h("ul", { class: "hits" }, found.slice(0, SHOWN).map((each) => h("li", { key: `${each.thing ?? ""} ${each.name}` },
      h("a", { href: context.link(each.view, each.thing ?? each.name) }, marked(each.name, q)),
      each.thing ? h("span", { class: "note" }, `of ${each.thing}`) : null,
      each.state ? chip(each.state) : null,
      each.note ? h("span", { class: "note" }, each.note) : null))),
    found.length > SHOWN ? h("p", { class: "note" }, `and ${grouped(found.length - SHOWN)} more`,
      ["applications", "nodes"].includes(view) ? [": ", h("a", { href: context.link(view, "", { q, ...(view === "applications" ? { state: "all" } : {}) }) }, `all in ${heading}`)] : "; a longer text finds fewer") : null);
}

/** A name with the found part marked. */
function marked(name, q) {
  const at = name.toLowerCase().indexOf(q.toLowerCase());
  // (Lower case may have another length than the name itself.)
  if (at < 0 || name.toLowerCase().length !== name.length) return name;
  return [name.slice(0, at), h("mark", {}, name.slice(at, at + q.length)), name.slice(at + q.length)];
}
