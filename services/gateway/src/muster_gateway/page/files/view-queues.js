// The tree of queues: what each uses against its guarantee and its max; and one queue, with its position in words.

import { queuePart } from "./api.js";
import { h } from "./dom.js";
import { amount, count, duration, grouped, ms, of, quantity, types, unit } from "./format.js";
import { bar, chip, figure, quantities } from "./parts.js";
import { reason } from "./words.js";

export const title = "Queues";
export const every_ms = 2000;

// A tree with more queues than this begins closed below the second level.
const OPEN_MAX = 60;

export async function load(context) {
  const [snapshot, single, position] = await Promise.all([
    context.get(["metrics", "snapshot"], { sections: "queues", partition: context.partition }),
    context.thing ? context.find(["partition", context.partition, "queue", queuePart(context.thing)]) : null,
    context.thing ? context.find(["explain", "queue", queuePart(context.thing)], { partition: context.partition }) : null,
  ]);
  return { queues: snapshot.queues, single, position };
}

export function render(context, { queues, single, position }) {
  const tree = grown(queues);
  return [
    h("h1", {}, "Queues"),
    context.thing ? detail(context, queues, single, position) : null,
    h("p", { class: "legend", "aria-hidden": "true" },
      h("span", { class: "key used" }, "used"), h("span", { class: "key wanted" }, "wanted"), h("span", { class: "key mark" }, "guaranteed")),
    h("table", { class: "tree" },
      h("caption", { class: "sr" }, "Queues with what they use of their max"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Queue"), h("th", { scope: "col", class: "num" }, "Applications"), h("th", { scope: "col" }, "Used of the max"))),
      h("tbody", {}, visible(context, tree).map((each) => row(context, each)))),
  ];
}

/** The queues as a tree, each with what it is measured against: its own max, else the nearest one above that has one. */
function grown(queues) {
  const byPath = new Map();
  for (const each of queues) {
    const parent = byPath.get(each.path.slice(0, each.path.lastIndexOf(".")));
    const node = { ...each, children: [], depth: parent ? parent.depth + 1 : 0, name: parent ? each.path.slice(parent.path.length + 1) : each.path };
    node.bounds = { ...(parent?.bounds ?? {}), ...Object.fromEntries(types(each.max).map((type) => [type, Math.min(of(each.max, type), of(parent?.bounds, type) || Infinity)])) };
    parent?.children.push(node);
    byPath.set(each.path, node);
  }
  return byPath;
}

function isOpen(context, node, size) {
  const said = context.memory.open?.get(node.path);
  return said ?? (size <= OPEN_MAX || node.depth < 2 || (context.thing + ".").startsWith(node.path + "."));
}

function visible(context, tree) {
  const found = [];
  const walk = (node) => {
    found.push({ node, open: isOpen(context, node, tree.size) });
    if (found.at(-1).open) node.children.forEach(walk);
  };
  for (const node of tree.values()) if (node.depth === 0) walk(node);
  return found;
}

function row(context, { node, open }) {
  const shown = types(node.allocated, node.pending, node.guaranteed, node.max);
  const turn = () => {
    context.memory.open = (context.memory.open ?? new Map()).set(node.path, !open);
    context.redraw();
  };
  const arrows = (event) => {
    if ((event.key === "ArrowLeft" && open) || (event.key === "ArrowRight" && !open)) turn();
  };
  return h("tr", { key: node.path, class: node.path === context.thing ? "chosen" : null },
    h("th", { scope: "row", style: { "--depth": node.depth } },
      h("span", { class: "branch" },
        node.children.length
          ? h("button", { type: "button", class: "turn", "aria-expanded": String(open), "aria-label": `Queues below ${node.path}`, on: { click: turn, keydown: arrows } }, h("span", { "aria-hidden": "true" }, "▸"))
          : h("span", { class: "turn" }),
        h("a", { href: context.link("queues", node.path), "aria-current": node.path === context.thing ? "true" : null }, node.name),
        node.state !== "Active" ? chip(node.state) : null)),
    h("td", { class: "num" }, grouped(node.applications), h("span", { class: "unit" }, node.applications === 1 ? " app" : " apps"), node.applicationsMax ? h("span", { class: "note" }, `${grouped(node.applicationsRunning)} of ${grouped(node.applicationsMax)} run`) : null),
    h("td", {}, h("div", { class: "uses" }, shown.map((type) => use(node, type)))));
}

function use(node, type) {
  const [used, total] = [of(node.allocated, type), of(node.bounds, type)];
  const [pending, guaranteed] = [of(node.pending, type), of(node.guaranteed, type)];
  const own = of(node.max, type) > 0;
  const noun = unit(type) || type;
  return h("div", { class: "use", key: type },
    h("span", { class: "what" }, h("span", { class: "type" }, type),
      h("span", { class: own ? null : "faint" }, total ? `${quantity(type, used)} of ${quantity(type, total)}` : quantity(type, used))),
    bar({ used, total, pending, mark: guaranteed, label: `${node.path}: ${noun}${own ? "" : ", of what is above"}${guaranteed ? `, guaranteed ${quantity(type, guaranteed)}` : ""}` }),
    pending || guaranteed
      ? h("span", { class: "note" }, [guaranteed ? `guaranteed ${quantity(type, guaranteed)}` : "", pending ? `+${quantity(type, pending)} wanted` : ""].filter(Boolean).join(" · "))
      : null);
}

function detail(context, queues, single, position) {
  const figures = queues.find((each) => each.path === context.thing);
  if (!position || !figures) return h("section", { class: "card detail" }, h("h2", {}, context.thing), h("p", { class: "empty" }, "There is no such queue, or no more."));
  const asks = Object.entries(position.asks).sort((a, b) => b[1] - a[1]);
  const properties = Object.entries(single?.properties ?? {});
  return h("section", { class: "card detail", "aria-label": `Queue ${context.thing}` },
    h("div", { class: "head" }, h("h2", {}, context.thing), chip(position.state),
      h("a", { class: "away", href: context.link("queues"), "aria-label": "Close this queue" }, "Close")),
    h("p", { class: "prose" }, position.message),
    h("dl", { class: "figures" },
      figure("Applications", grouped(figures.applications), figures.applicationsMax ? `${grouped(figures.applicationsRunning)} of ${grouped(figures.applicationsMax)} run` : null),
      figure("Fair share", `${Math.round(position.share * 100)}%`),
      figure("Order", single?.sortingPolicy ?? "–", position.leaf ? "of applications" : "of queues"),
      position.maxApplications ? figure("Forming gangs", grouped(position.formingApplications)) : null,
      position.preemptionDelay ? figure("Preemption", `after ${duration(ms(position.preemptionDelay))}`) : null),
    h("dl", { class: "facts" },
      fact("Used", quantities(position.allocated)), fact("Wanted", quantities(position.pending)), fact("Its own max", quantities(position.maximum)),
      fact("It may still get", quantities(position.headroom)),
      fact("Guaranteed", position.guarantees.length ? h("ul", { class: "plain" }, position.guarantees.map((each) => h("li", {}, `${amount(each.resourceType, each.guaranteed)} at ${each.queue}`, each.missing > 0 ? h("span", { class: "more" }, `, ${amount(each.resourceType, each.missing)} missing`) : ", met"))) : h("span", { class: "faint" }, "none")),
      asks.length ? fact("Asks that wait", h("ul", { class: "plain" }, asks.map(([code, many]) => h("li", {}, h("a", { href: context.link("pending", "", { reason: code, queue: context.thing }) }, reason(code)), ` ${grouped(many)}`)))) : null,
      properties.length ? fact("Properties", h("ul", { class: "plain code" }, properties.map(([name, value]) => h("li", {}, `${name}: ${value}`)))) : null),
    h("p", {}, h("a", { class: "go", href: context.link("applications", "", { queue: context.thing }) }, `Show its ${count(figures.applications, "application")}`)));
}

function fact(name, value) {
  return [h("dt", {}, name), h("dd", {}, value)];
}
