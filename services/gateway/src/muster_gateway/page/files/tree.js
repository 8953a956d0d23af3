// The queues as a collapsible tree in a table: the usage of each against its max.

import { h } from "./dom.js";
import { of, quantity, types, unit, usedOf } from "./format.js";
import { bar, chip } from "./parts.js";

// A tree with more queues than this starts collapsed below the second level.
const OPEN_MAX = 60;

/**
 * The queues as a tree, by path. Each has the limit for its usage: its own max, else the least max of its ancestors.
 * @param queues [{path, allocated, max, …}], parents before children
 */
export function grown(queues) {
  const byPath = new Map();
  for (const each of queues) {
    const parent = byPath.get(each.path.slice(0, each.path.lastIndexOf(".")));
    const node = { ...each, children: [], depth: parent ? parent.depth + 1 : 0, name: parent ? each.path.slice(parent.path.length + 1) : each.path };
    node.bounds = { __proto__: null, ...parent?.bounds }; // a type may have any name
    for (const type of types(each.max)) node.bounds[type] = Math.min(each.max[type], node.bounds[type] ?? Infinity);
    parent?.children.push(node);
    byPath.set(each.path, node);
  }
  return byPath;
}

/**
 * The rows of a tree.
 * @param options chosen: the path of the shown queue; cells: makes the cells behind a queue's name
 */
export function rows(context, tree, { chosen = "", cells }) {
  const found = [];
  const walk = (node) => {
    const open = isOpen(context, node, tree.size, chosen);
    found.push(row(context, node, open, chosen, cells(node)));
    if (open) node.children.forEach(walk);
  };
  for (const node of tree.values()) if (node.depth === 0) walk(node);
  return found;
}

function isOpen(context, node, size, chosen) {
  const said = context.memory.open?.get(node.path);
  return said ?? (size <= OPEN_MAX || node.depth < 2 || (chosen + ".").startsWith(node.path + "."));
}

function row(context, node, open, chosen, cells) {
  const turn = () => {
    context.memory.open = (context.memory.open ?? new Map()).set(node.path, !open);
    context.redraw();
  };
  const arrows = (event) => {
    if ((event.key === "ArrowLeft" && open) || (event.key === "ArrowRight" && !open)) turn();
  };
  return h("tr", { key: node.path, class: node.path === chosen ? "chosen" : null },
    h("th", { scope: "row", style: { "--depth": node.depth } },
      h("span", { class: "branch" },
        node.children.length
          ? h("button", { type: "button", class: "turn", "aria-expanded": String(open), "aria-label": `Queues below ${node.path}`, on: { click: turn, keydown: arrows } }, h("span", { "aria-hidden": "true" }, "▸"))
          : h("span", { class: "turn" }),
        h("a", { href: context.link("queues", node.path), "aria-current": node.path === chosen ? "true" : null }, node.name),
        node.state && node.state !== "Active" ? chip(node.state) : null)),
    cells);
}

/** A queue's usage of one type, as figures and a bar; grey if its max is that of a queue above. */
export function use(node, type) {
  const used = of(node.allocated, type);
  const [pending, guaranteed] = [of(node.pending, type), of(node.guaranteed, type)];
  const bounded = Object.hasOwn(node.bounds, type);
  const total = of(node.bounds, type);
  const own = Object.hasOwn(node.max ?? {}, type);
  const said = [guaranteed ? `guaranteed ${quantity(type, guaranteed)}` : "", pending ? `+${quantity(type, pending)} wanted` : ""].filter(Boolean);
  return h("div", { class: "use", key: type },
    h("span", { class: "what" }, h("span", { class: "type" }, type),
      bounded ? h("span", { class: own ? null : "faint" }, usedOf(type, used, total)) : h("span", {}, `${quantity(type, used)} ${unit(type)}`, h("span", { class: "faint" }, " · no limit"))),
    bounded ? bar({ used, total, pending, mark: guaranteed, label: `${node.path}: ${unit(type) || type}${own ? "" : ", of the max above"}${guaranteed ? `, guaranteed ${quantity(type, guaranteed)}` : ""}` }) : null,
    said.length ? h("span", { class: "note" }, said.join(" · ")) : null);
}

/** All types of a queue's row. */
export function uses(node) {
  const shown = types(node.allocated, node.pending, node.guaranteed, node.max);
  return shown.length ? h("div", { class: "uses" }, shown.map((type) => use(node, type))) : h("span", { class: "faint" }, "nothing");
}
