// Parts of several views.

import { h } from "./dom.js";
import { amount, grouped, of, percent, types } from "./format.js";

/** A bar changes its colour from these percentages on, as in `muster top`. */
const HIGH = 75;
const FULL = 95;

export function level(share) {
  if (share === null) return "";
  return share > 100 ? "over" : share >= FULL ? "full" : share >= HIGH ? "high" : "";
}

/** A bar of usage. `pending` is the pending amount; `mark` a guarantee, in the same unit. */
export function bar({ used, total, pending = 0, mark = 0, label }) {
  const scale = Math.max(total, 1e-9);
  const share = percent(used, total);
  const part = (value) => `${Math.max(0, Math.min(100, (100 * value) / scale)).toFixed(2)}%`;
  const wanted = Math.min(pending, Math.max(0, total - used));
  return h("span", { class: `meter ${level(share)}`, role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.min(100, share ?? 0), "aria-valuetext": share === null ? "none available" : `${share} %` },
    h("span", { class: "used", style: { width: part(used) } }),
    wanted > 0 ? h("span", { class: "wanted", style: { left: part(used), width: part(wanted) } }) : null,
    mark > 0 && mark <= total ? h("span", { class: "mark", style: { left: part(mark) } }) : null);
}

export function chip(state) {
  return h("span", { class: `chip ${String(state).toLowerCase().replace(/[^a-z]/g, "")}` }, state);
}

/** Quantities as small pieces, each with its type. */
export function quantities(resource, empty = "none") {
  const found = types(resource).filter((type) => of(resource, type) !== 0);
  return found.length ? h("span", { class: "quantities" }, found.map((type) => h("span", { class: "quantity" }, amount(type, of(resource, type))))) : h("span", { class: "faint" }, empty);
}

/** A dotted name that may be broken at its dots. */
export function dotted(name) {
  return name.split(/(?<=\.)/).map((part, at) => [at ? h("wbr") : null, part]);
}

export function figure(label, value, note = null) {
  return h("div", { class: "figure" }, h("dt", {}, label), h("dd", {}, h("b", {}, value), note ? h("span", { class: "note" }, note) : null));
}

/** Says that an object does not exist here; names its partition if it is in another one. */
export function absent(context, view, text, elsewhere = []) {
  return h("p", { class: "empty" }, text, elsewhere.map((partition) => [" ", h("a", { href: context.link(view, context.thing, { partition }) }, `It is in partition ${partition}.`)]));
}

/** The page of a long list that the address names, and the buttons to change it. */
export function paged(context, list, size, noun) {
  const pages = Math.max(1, Math.ceil(list.length / size));
  const at = Math.min(Math.max(0, Number(context.params.page) || 0), pages - 1);
  const turn = (to) => context.set({ page: to || "" }, { again: false });
  const shown = list.slice(at * size, (at + 1) * size);
  const pager = pages === 1 ? null : h("nav", { class: "pager", "aria-label": `Pages of ${noun}` },
    h("button", { type: "button", disabled: at === 0, on: { click: () => turn(at - 1) } }, "Previous"),
    h("span", { role: "status" }, `${grouped(at * size + 1)}–${grouped(at * size + shown.length)} of ${grouped(list.length)}`),
    h("button", { type: "button", disabled: at === pages - 1, on: { click: () => turn(at + 1) } }, "Next"));
  return { shown, pager };
}

/** A heading of a column that sorts by it. */
export function sortable(label, name, sort, change, props = {}) {
  const [by, down] = [sort.replace(/^-/, ""), sort.startsWith("-")];
  const mine = by === name;
  return h("th", { scope: "col", "aria-sort": mine ? (down ? "descending" : "ascending") : null, ...props },
    h("button", { type: "button", class: "sort", on: { click: () => change(mine && down ? name : mine ? `-${name}` : props["data-first"] === "down" ? `-${name}` : name) } },
      label, h("span", { class: "arrow", "aria-hidden": "true" }, mine ? (down ? "↓" : "↑") : "\u00a0")));
}

/** A field with its name above. */
export function field(label, control) {
  return h("label", { class: "field", key: label }, h("span", { class: "label" }, label), control);
}

export function options(list, all) {
  return [h("option", { value: "" }, all), ...list.map((each) => (Array.isArray(each) ? h("option", { value: each[0] }, each[1]) : h("option", { value: each }, each)))];
}
