// Users and groups: the usage of each, against the cluster and its limits; and one of them, queue by queue.

import { h } from "./dom.js";
import { count, grouped, of, resource, types, usedOf } from "./format.js";
import { bar, dotted, field, figure, paged, quantities, sortable } from "./parts.js";
import { grown, rows, uses } from "./tree.js";

const PAGE = 100;
// The number of applications that a queue's row names.
const NAMED = 8;

const KINDS = {
  users: { one: "User", many: "Users", list: "users", single: "user", nameOf: (each) => each.userName },
  groups: { one: "Group", many: "Groups", list: "groups", single: "group", nameOf: (each) => each.groupName },
};

export const users = { title: "Users", every_ms: 3000, load: (context) => load(context, KINDS.users), render: (context, data) => render(context, KINDS.users, data) };
// The navigation shows these two as one.
export const groups = { title: "Groups", within: "users", every_ms: 3000, load: (context) => load(context, KINDS.groups), render: (context, data) => render(context, KINDS.groups, data) };

async function load(context, kind) {
  const at = ["partition", context.partition, "usage"];
  const [snapshot, found] = await Promise.all([
    context.get(["metrics", "snapshot"], { sections: "scheduler", partition: context.partition }),
    context.thing ? context.find([...at, kind.single, context.thing]) : context.get([...at, kind.list]),
  ]);
  const capacity = snapshot.scheduler.capacity;
  if (!context.thing) return { list: found.map((each) => summed(kind, each, capacity)) };
  // A path of REST takes no name with a slash. Such a name is searched in the list.
  const one = found ?? (context.thing.includes("/") ? (await context.get([...at, kind.list])).find((each) => kind.nameOf(each) === context.thing) : null);
  return { one: one ? summed(kind, one, capacity) : null };
}

function render(context, kind, { list, one }) {
  return context.thing ? renderOne(context, kind, one) : renderList(context, kind, list);
}

// ---- figures --------------------------------------------------------------------------------------------------------

/** One user or group from REST, flattened: its queues top down, its largest share of the cluster, its nearest limit. */
function summed(kind, each, capacity) {
  const queues = [];
  const walk = (level) => {
    const running = level.runningApplications ?? [];
    const most = level.maxApplications ?? 0;
    queues.push({ path: level.queuePath, allocated: level.resourceUsage ?? {}, max: level.maxResources ?? {}, running, most, leaf: !level.children?.length });
    level.children?.forEach(walk);
  };
  if (each.queues) walk(each.queues);
  const used = queues[0]?.allocated ?? {};
  const shares = types(used).map((type) => ({ type, share: of(capacity, type) > 0 ? (100 * used[type]) / capacity[type] : 0 }));
  return {
    name: kind.nameOf(each), queues, used, running: queues[0]?.running ?? [],
    // A user has the groups that its applications count for; a group has itself.
    groups: [...new Set(Object.values(each.groups ?? {}))].sort(), counted: each.applications?.length ?? null,
    largest: shares.reduce((best, one) => (one.share > best.share ? one : best), { type: "", share: 0 }),
    nearest: nearest(queues),
  };
}

/** The limit with the least left, over all queues; null without a limit. */
function nearest(queues) {
  const found = [];
  for (const { path, allocated, max, running, most } of queues) {
    for (const type of types(max)) {
      const used = of(allocated, type);
      found.push({ share: max[type] > 0 ? (100 * used) / max[type] : used > 0 ? Infinity : 0, used, total: max[type], said: `${usedOf(type, used, max[type])}${type === "vcore" ? "" : ` ${type}`}`, path });
    }
    if (most) found.push({ share: (100 * running.length) / most, used: running.length, total: most, said: `${grouped(running.length)} of ${count(most, "application")}`, path });
  }
  return found.reduce((best, one) => (best === null || one.share > best.share ? one : best), null);
}

const whole = (share) => (share === 0 ? "0%" : share < 1 ? "under 1%" : `${Math.floor(share)}%`);

// ---- the list -------------------------------------------------------------------------------------------------------

const ORDERS = {
  __proto__: null, // the address names one
  name: (each) => each.name, running: (each) => each.running.length, share: (each) => each.largest.share, limit: (each) => each.nearest?.share ?? -1,
};

function renderList(context, kind, list) {
  const { q = "", sort = "-share" } = context.params;
  const set = (params) => context.set({ page: "", ...params }, { again: false });
  const order = ORDERS[sort.replace(/^-/, "")] ?? ORDERS.share;
  const down = sort.startsWith("-") ? -1 : 1;
  const wanted = q.toLowerCase();
  const found = list.filter((each) => !wanted || each.name.toLowerCase().includes(wanted)).sort((a, b) => {
    const [one, other] = [order(a), order(b)];
    return (one < other ? -1 : one > other ? 1 : 0) * down || (a.name < b.name ? -1 : 1);
  });
  const { shown, pager } = paged(context, found, PAGE, kind.list);
  const by = (change) => set({ sort: change });
  return [
    h("h1", {}, kind.many),
    h("nav", { class: "tabs", "aria-label": "Users or groups" }, Object.entries(KINDS).map(([view, each]) =>
      h("a", { key: view, href: context.link(view), "aria-current": each === kind ? "page" : null }, each.many))),
    h("form", { class: "filters", role: "search", "aria-label": `Filter ${kind.list}`, on: { submit: (event) => event.preventDefault() } },
      field("Text", h("input", { type: "search", name: "q", value: q, placeholder: "name", on: { input: (event) => set({ q: event.target.value }) } }))),
    h("p", { class: "count", role: "status" }, q ? `${count(found.length, kind.single)} of ${grouped(list.length)}` : count(found.length, kind.single)),
    found.length
      ? h("table", { class: "list people" },
          h("caption", { class: "sr" }, `${kind.many}, and what they use`),
          h("thead", {}, h("tr", {}, sortable(kind.one, "name", sort, by), sortable("Running applications", "running", sort, by, { class: "num medium", "data-first": "down" }),
            h("th", { scope: "col", class: "wide" }, "Uses"), sortable("Of the cluster", "share", sort, by, { "data-first": "down" }), sortable("Nearest limit", "limit", sort, by, { "data-first": "down" }))),
          h("tbody", {}, shown.map((each) => row(context, kind, each))))
      : h("p", { class: "empty" }, list.length ? `No ${kind.single} is like that.` : nothing(kind)),
    pager,
  ];
}

function nothing(kind) {
  return kind === KINDS.users ? "No user has an application with asks or allocations." : "No group has a limit that an application counts in. (Only groups that a limit names are counted.)";
}

function row(context, kind, each) {
  const { largest, nearest: limit } = each;
  return h("tr", { key: each.name },
    h("th", { scope: "row" }, each.name ? h("a", { href: context.link(kind.list, each.name) }, each.name) : h("span", { class: "faint" }, "without a name"),
      each.groups.length ? h("span", { class: "note" }, "in ", linked(context, "groups", each.groups)) : null,
      h("span", { class: "narrow note" }, `${grouped(each.running.length)} running`)),
    h("td", { class: "num medium" }, grouped(each.running.length)),
    h("td", { class: "wide" }, quantities(each.used, "–")),
    h("td", {}, largest.type ? [bar({ used: largest.share, total: 100, label: `${each.name}: share of the cluster's ${largest.type}` }), h("span", { class: "note" }, `${whole(largest.share)} ${largest.type}`)] : h("span", { class: "faint" }, "–")),
    h("td", {}, limit ? [bar({ used: limit.used, total: limit.total, label: `${each.name}: nearest limit, in ${limit.path}` }), h("span", { class: "note" }, limit.said, " in ", dotted(limit.path))] : h("span", { class: "faint" }, "none")));
}

function linked(context, view, names) {
  return names.map((each, at) => [at ? ", " : "", h("a", { href: context.link(view, each) }, each)]);
}

// ---- one of them ----------------------------------------------------------------------------------------------------

function renderOne(context, kind, one) {
  const back = h("p", { class: "crumb" }, h("a", { href: context.link(kind.list) }, kind.many));
  if (!one) return [back, h("h1", {}, context.thing), h("p", { class: "empty" }, `There is no such ${kind.single} that uses or wants anything now.`)];
  const tree = grown(one.queues);
  const limit = one.nearest;
  return [
    back,
    h("h1", {}, one.name),
    h("p", { class: "prose" }, sentence(kind, one)),
    h("dl", { class: "figures" },
      figure("Running applications", grouped(one.running.length), one.counted > one.running.length ? `of ${grouped(one.counted)} that count` : null),
      figure("Of the cluster", whole(one.largest.share), one.largest.type || null),
      figure("Nearest limit", limit ? (limit.share === Infinity ? "over" : whole(limit.share)) : "none", limit ? `${limit.said} in ${limit.path}` : null),
      one.groups.length ? h("div", { class: "figure" }, h("dt", {}, "Counts in"), h("dd", {}, h("span", {}, linked(context, "groups", one.groups)))) : null),
    kind === KINDS.users ? h("p", {}, h("a", { class: "go", href: context.link("applications", "", { user: one.name }) }, "Show all of the user's applications")) : null,
    one.queues.length
      ? h("table", { class: "tree" },
          h("caption", { class: "sr" }, `Queues with what ${one.name} uses of the limits`),
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Queue"), h("th", { scope: "col", class: "num" }, "Running"), h("th", { scope: "col" }, "Used of the limit"))),
          h("tbody", {}, rows(context, tree, { cells: (node) => cells(context, kind, one, node) })))
      : null,
    one.queues.some((each) => types(each.max).length) ? h("p", { class: "note" }, "Grey: the limit of a queue above.") : null,
  ];
}

function sentence(kind, { name, used, running, nearest: limit }) {
  const held = types(used).some((type) => of(used, type) > 0);
  const begin = `${kind.one} ${name} has ${count(running.length, "running application")} and uses ${held ? resource(used) : "nothing"}.`;
  if (!limit) return `${begin} No limit applies to the ${kind.single}.`;
  return `${begin} ${limit.share >= 100 ? "The limit is reached" : "Nearest to a limit"}: ${limit.said} in ${limit.path}.`;
}

function cells(context, kind, one, node) {
  const { running, most } = node;
  const named = running.slice(0, NAMED);
  const rest = running.slice(NAMED);
  return [
    h("td", { class: "num" }, most ? `${grouped(running.length)} of ${grouped(most)}` : grouped(running.length), h("span", { class: "unit" }, " running")),
    h("td", {}, uses(node),
      node.leaf && named.length ? h("p", { class: "note names" }, linked(context, "applications", named), rest.length && kind === KINDS.users ? [" and ", h("a", { href: context.link("applications", "", { user: one.name, queue: node.path }) }, `${grouped(rest.length)} more`)] : null) : null,
      node.leaf && rest.length && kind === KINDS.groups ? h("details", {}, h("summary", {}, `${grouped(rest.length)} more`), h("p", { class: "note names" }, linked(context, "applications", rest))) : null),
  ];
}
