// Nodes as a heat map of small squares, coloured by usage; and one node, with its allocations.

import { button } from "./actions.js";
import { fill, h } from "./dom.js";
import { absence, lastLife, removed } from "./ended.js";
import { ago, count, grouped, natural, of, percent, quantity, types, usedOf } from "./format.js";
import { absent, bar, chip, field, options, quantities } from "./parts.js";
import { kept, near } from "./rows.js";
import { reason } from "./words.js";

export const title = "Nodes";
export const every_ms = 2000;

const NODES_MAX = 10_000; // of one answer
const GAP = 2;

export async function load(context) {
  const [snapshot, single] = await Promise.all([
    context.get(["metrics", "snapshot"], { sections: "scheduler,nodes", nodes: NODES_MAX, partition: context.partition }),
    context.thing ? context.find(["explain", "node", context.thing], { partition: context.partition }) : null,
  ]);
  const [elsewhere, gone] = context.thing && !single ? await Promise.all([context.elsewhere("node", context.thing), lastLife(context, "node")]) : [[], null];
  return { nodes: snapshot.nodes, total: snapshot.scheduler.nodes, single, elsewhere, gone };
}

/** A node's usage of one type or ("") of its fullest type; null: it has none of the type. */
function fullness(node, type) {
  if (!type) return node.usedPercent;
  const capacity = of(node.capacity, type);
  const used = capacity - of(node.available, type);
  return capacity > 0 || used > 0 ? percent(used, capacity) : null;
}

function chosen(nodes, type, q, sort) {
  const wanted = q.toLowerCase();
  const found = nodes.filter((each) => !wanted || each.nodeId.toLowerCase().includes(wanted)).map((node) => ({ node, share: fullness(node, type) }));
  // Sorts names with their numbers as numbers, so that a node keeps its place while it fills. The answer has the
  // fullest node first.
  if (sort === "name") return found.sort((a, b) => natural.compare(a.node.nodeId, b.node.nodeId));
  return found.sort((a, b) => (b.share ?? -1) - (a.share ?? -1) || natural.compare(a.node.nodeId, b.node.nodeId));
}

export function render(context, { nodes, total, single, elsewhere, gone }) {
  const { type = "", q = "", sort = "name" } = context.params;
  const kinds = kept(context.memory, "kinds", [nodes], () => types(...nodes.map((each) => each.capacity)));
  const found = kept(context.memory, "found", [nodes, type, q, sort], () => chosen(nodes, type, q, sort));
  const set = (params) => context.set(params, { again: false });
  return [
    h("h1", {}, "Nodes"),
    context.thing ? detail(context, single, elsewhere, gone) : null,
    h("form", { class: "filters", role: "search", "aria-label": "Choose nodes", on: { submit: (event) => event.preventDefault() } },
      field("Colour by", h("select", { name: "type", value: type, on: { change: (event) => set({ type: event.target.value }) } }, options(kinds, "Fullest type"))),
      field("Order", h("select", { name: "sort", value: sort, on: { change: (event) => set({ sort: event.target.value }) } }, h("option", { value: "name" }, "Name"), h("option", { value: "full" }, "Fullest first"))),
      field("Text", h("input", { type: "search", name: "q", value: q, placeholder: "node id", on: { input: (event) => set({ q: event.target.value }) } }))),
    h("p", { class: "count", role: "status" }, found.length < total ? `${grouped(found.length)} of ${count(total, "node")}` : count(total, "node")),
    found.length ? heat(context, found, type) : h("p", { class: "empty" }, total ? "No node matches." : "No node yet."),
    found.length ? table(context, found, type) : null,
  ];
}

// ---- the heat map ---------------------------------------------------------------------------------------------------

// One canvas for any number of nodes. It is drawn in a few milliseconds and adds no elements to the document.
function heat(context, found, type) {
  const { memory } = context;
  const map = (memory.map ??= new HeatMap((id) => { location.hash = context.link("nodes", id, carried(context)); }));
  map.show(found, type, context.width, context.thing);
  // The canvas keeps its place in the document: moving it would take the focus from it.
  const stays = map.element.isConnected ? h("div", { key: "heat", keep: map }) : map.element;
  return h("section", { class: "heat", "aria-label": "Heat map" }, stays, legend());
}

function carried(context) {
  const { type, sort, q } = context.params;
  return { type, sort, q };
}

class HeatMap {
  constructor(open) {
    this.open = open;
    this.canvas = h("canvas", {
      tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-describedby": "heathelp heatsaid",
      on: { keydown: (event) => this.key(event), pointermove: (event) => this.point(event), pointerleave: () => this.leave(), click: (event) => this.click(event), focus: () => this.focus(), blur: () => this.draw() },
    });
    this.said = h("p", { id: "heatsaid", class: "said", "aria-live": "polite" });
    this.help = h("p", { id: "heathelp", class: "sr" }, "Arrow keys move between nodes, Home and End go to the first and last, Enter opens one. The table below has the same nodes.");
    this.element = h("div", { key: "heat", keep: this }, this.canvas, this.said, this.help);
    this.at = -1;
    this.found = [];
  }

  show(found, type, width, chosen) {
    const id = this.found[this.at]?.node.nodeId;
    // Scrolling redraws the view. The map is drawn again only if something in it differs.
    const looks = [found, type, width, chosen, document.documentElement.dataset.theme, window.matchMedia("(prefers-color-scheme: dark)").matches, window.devicePixelRatio];
    if (this.looks?.every((each, at) => each === looks[at])) return;
    this.looks = looks;
    Object.assign(this, { found, type, chosen });
    this.at = found.findIndex(({ node }) => node.nodeId === (id ?? chosen));
    this.size = Math.max(found.length > 400 ? 11 : 16, Math.min(26, Math.floor(Math.sqrt((width * 360) / found.length)) - GAP));
    this.columns = Math.max(1, Math.floor((width + GAP) / (this.size + GAP)));
    this.rows = Math.ceil(found.length / this.columns);
    this.canvas.setAttribute("aria-label", `${count(found.length, "node")} by how full they are${type ? ` of ${type}` : ""}`);
    this.draw();
    this.say();
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const step = this.size + GAP;
    const [width, height] = [this.columns * step + 2, this.rows * step + 2];
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const pen = this.canvas.getContext("2d");
    const colours = palette();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.found.forEach(({ node, share }, place) => {
      const [x, y] = [2 + (place % this.columns) * step, 2 + Math.floor(place / this.columns) * step];
      pen.fillStyle = share === null ? colours.none : share > 100 ? colours.over : colours.ramp[Math.round(share)];
      pen.fillRect(x, y, this.size, this.size);
      if (!node.schedulable) {
        pen.strokeStyle = colours.slash;
        pen.lineWidth = 1.5;
        pen.beginPath();
        pen.moveTo(x + 2, y + this.size - 2);
        pen.lineTo(x + this.size - 2, y + 2);
        pen.stroke();
      }
      if (node.nodeId === this.chosen) this.frame(pen, x, y, colours.chosen);
    });
    if (this.at >= 0 && (document.activeElement === this.canvas || this.pointed)) {
      this.frame(pen, 2 + (this.at % this.columns) * step, 2 + Math.floor(this.at / this.columns) * step, colours.focus);
    }
  }

  frame(pen, x, y, colour) {
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, this.size + 2, this.size + 2);
  }

  focus() {
    if (this.at < 0) this.at = 0;
    this.draw();
    this.say();
  }

  key(event) {
    const last = this.found.length - 1;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns };
    let to = this.at;
    if (event.key in moves) to = this.at + moves[event.key];
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = last;
    else if ((event.key === "Enter" || event.key === " ") && this.at >= 0) this.open(this.found[this.at].node.nodeId);
    else return;
    event.preventDefault();
    if (to >= 0 && to <= last && to !== this.at) {
      this.at = to;
      this.draw();
      this.say();
    }
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const step = this.size + GAP;
    const [column, row] = [Math.floor((event.clientX - box.left - 2) / step), Math.floor((event.clientY - box.top - 2) / step)];
    const place = row * this.columns + column;
    return column >= 0 && column < this.columns && place >= 0 && place < this.found.length ? place : -1;
  }

  point(event) {
    const place = this.under(event);
    if (place === this.at && this.pointed) return;
    this.pointed = place >= 0;
    if (place >= 0) this.at = place;
    this.draw();
    this.say();
  }

  leave() {
    this.pointed = false;
    this.draw();
  }

  click(event) {
    const place = this.under(event);
    if (place >= 0) this.open(this.found[place].node.nodeId);
  }

  say() {
    const one = this.found[this.at];
    fill(this.said, one ? [h("b", {}, one.node.nodeId), ` ${told(one, this.type)}`] : "Point at a node, or select one with the arrow keys.");
  }
}

function told({ node, share }, type) {
  const used = types(node.capacity).map((each) => `${each} ${usedOf(each, of(node.capacity, each) - of(node.available, each), of(node.capacity, each))}`);
  return `${share === null ? `has no ${type}` : `${share}% full`}${node.schedulable ? "" : ", draining"} · ${count(node.allocations, "allocation")} · ${used.join(", ")}`;
}

/** The theme's colours, read from the style sheet, because a canvas knows no custom properties. */
function palette() {
  const probe = document.getElementById("probe");
  const of = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const stops = ["--heat-0", "--heat-25", "--heat-50", "--heat-75", "--heat-100"].map((name) => of(name).match(/[\d.]+/g).slice(0, 3).map(Number));
  const found = { over: of("--heat-over"), none: of("--heat-none"), slash: of("--heat-slash"), focus: of("--focus"), chosen: of("--ink"), ramp: [] };
  for (let share = 0; share <= 100; share += 1) {
    const place = Math.min(3, Math.floor(share / 25));
    const way = share / 25 - place;
    found.ramp.push(`rgb(${stops[place].map((from, at) => Math.round(from + (stops[place + 1][at] - from) * way)).join(" ")})`);
  }
  return found;
}

function legend() {
  return h("p", { class: "legend heatlegend" },
    h("span", {}, "0%"), h("span", { class: "ramp", "aria-hidden": "true" }), h("span", {}, "100% full"),
    h("span", { class: "key over" }, "over-committed"), h("span", { class: "key drain" }, "draining"), h("span", { class: "key nothing" }, "has none of the type"));
}

// ---- the table, and one node ----------------------------------------------------------------------------------------

function table(context, found, type) {
  const row = ({ node, share }, props) => h("tr", { ...props, class: node.nodeId === context.thing ? "chosen" : null },
    h("th", { scope: "row" }, h("a", { href: context.link("nodes", node.nodeId, carried(context)) }, node.nodeId), node.schedulable ? null : chip("Draining")),
    h("td", {}, share === null ? h("span", { class: "faint" }, `no ${type}`) : h("span", { class: "inline" }, bar({ used: share, total: 100, label: `${node.nodeId} full` }), h("span", { class: "right" }, `${share}%`))),
    h("td", { class: "medium" }, quantities(node.available, "nothing")),
    h("td", { class: "num" }, grouped(node.allocations)));
  return h("table", { class: "list", "aria-rowcount": found.length + 1 },
    h("caption", { class: "sr" }, "Nodes"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Node"), h("th", { scope: "col" }, "Full"), h("th", { scope: "col", class: "medium" }, "Free"), h("th", { scope: "col", class: "num" }, "Allocations"))),
    h("tbody", { class: "rows" }, near(context, found, { key: (each) => each.node.nodeId, row, columns: 4 })));
}

function detail(context, node, elsewhere, gone) {
  const close = h("a", { class: "away", href: context.link("nodes", "", carried(context)), "aria-label": "Close this node" }, "Close");
  if (!node && gone?.life && !elsewhere.length) return removed(context, "Node", gone.life, close);
  if (!node) return h("section", { class: "card detail" }, h("div", { class: "head" }, h("h2", {}, context.thing), close), absent(context, "nodes", absence(gone, "node"), elsewhere));
  const waiting = Object.entries(node.waiting.reasons);
  return h("section", { class: "card detail", "aria-label": `Node ${node.node}` },
    h("div", { class: "head" }, h("h2", {}, node.node), chip(!node.schedulable ? "Draining" : node.ready ? "Ready" : "Not ready"), close),
    h("p", { class: "prose" }, node.message),
    actions(context, node),
    h("div", { class: "uses" }, types(node.capacity, node.allocated).map((type) => {
      const [held, others, total] = [of(node.allocated, type), of(node.occupied, type), of(node.capacity, type)];
      return h("div", { class: "use", key: type },
        h("span", { class: "what" }, h("span", { class: "type" }, type), usedOf(type, held + others, total)),
        bar({ used: held + others, total, label: `${type} used` }),
        others ? h("span", { class: "note" }, `${quantity(type, others)} by others`) : null);
    })),
    h("dl", { class: "facts" },
      node.keptFor.length ? [h("dt", {}, "Reserved for"), h("dd", {}, h("ul", { class: "plain" }, node.keptFor.map((each) => h("li", {}, h("a", { href: context.link("applications", each.applicationID) }, each.applicationID), ` ${each.allocationKey}, since ${ago(each.since)}`))))] : null,
      waiting.length ? [h("dt", {}, "It has room for pending asks with the reason"), h("dd", {}, h("ul", { class: "plain" }, waiting.map(([code, many]) => h("li", {}, `${reason(code)}: ${grouped(many)}`))))] : null),
    node.allocations.length ? onNode(context, node.allocations) : null,
    node.foreign.length ? h("details", {}, h("summary", {}, `${grouped(node.foreign.length)} of others`), h("ul", { class: "plain" }, node.foreign.slice(0, 200).map((each) => h("li", {}, each.allocationKey, " ", quantities(each.resource))))) : null);
}

function actions(context, node) {
  const query = { node: node.node, partition: context.partition };
  const done = node.schedulable
    ? button(context, "drain", { label: "Drain", title: `Drain ${node.node}?`, verb: "Drain", query, says: "Muster places nothing more on this node. What runs there goes on." })
    : button(context, "undrain", { label: "Undrain", title: `Undrain ${node.node}?`, verb: "Undrain", query, says: "Muster places asks on this node again." });
  return done ? h("div", { class: "choice" }, done) : null;
}

const HELD_MAX = 200;

function onNode(context, held) {
  return h("details", { open: held.length <= 12 }, h("summary", {}, count(held.length, "allocation")),
    h("table", { class: "list" }, h("caption", { class: "sr" }, "Allocations on the node"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Application"), h("th", { scope: "col" }, "Allocation"), h("th", { scope: "col", class: "medium" }, "Takes"), h("th", { scope: "col", class: "num" }, "Since"))),
      h("tbody", {}, held.slice(0, HELD_MAX).map((each) => h("tr", { key: `${each.applicationID} ${each.allocationKey}` },
        h("th", { scope: "row" }, h("a", { href: context.link("applications", each.applicationID) }, each.applicationID)),
        h("td", {}, each.allocationKey, each.told ? chip(each.told) : null),
        h("td", { class: "medium" }, quantities(each.resource)),
        h("td", { class: "num" }, ago(each.since)))))),
    held.length > HELD_MAX ? h("p", { class: "note" }, `and ${grouped(held.length - HELD_MAX)} more`) : null);
}
