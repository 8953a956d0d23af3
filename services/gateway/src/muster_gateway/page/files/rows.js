// Long tables: only the rows near the screen are in the document, gaps stand for the others.

import { h } from "./dom.js";

// Rows beyond the screen's edges, in pixels, so that scrolling and Tab find the next rows there already.
const BEYOND = 700;
// The height of a row before any has been measured, and the number of rows before anything is drawn.
const GUESS = 36;
const FIRST = 40;
// A list of up to so many rows is drawn whole: a search of the browser's finds all of it, and so does a printer.
const WHOLE = 150;

/**
 * The rows of a table's body (class "rows") near the screen.
 * @param list all objects
 * @param key makes an object's key, a string
 * @param row makes the row of an object and its props' additions: (object, props) => element
 * One list in a view: its memory has the heights.
 */
export function near(context, list, { key, row, columns }) {
  const { memory } = context;
  const known = (memory.rows ??= { heights: new Map(), guess: GUESS, width: 0 });
  const shown = range(known, list, key);
  memory.scrolled = () => {
    const now = range(known, list, key);
    if (now.from !== shown.from || now.to !== shown.to) context.redraw();
  };
  const height = (from, to) => {
    let sum = 0;
    for (let at = from; at < to; at += 1) sum += known.heights.get(key(list[at])) ?? known.guess;
    return sum;
  };
  // The row with the focus stays, even far from the screen: otherwise the focus would be lost.
  const focused = document.activeElement?.closest?.("tbody.rows > tr")?.dataset.row;
  const alone = focused === undefined ? -1 : list.findIndex((each) => key(each) === focused);
  const parts = [[shown.from, shown.to]];
  if (alone >= 0 && alone < shown.from) parts.unshift([alone, alone + 1]);
  else if (alone >= shown.to) parts.push([alone, alone + 1]);
  const found = [];
  let end = 0;
  for (const [from, to] of parts) {
    if (from > end) found.push(gap(height(end, from), end ? "middle" : "top", columns));
    for (let at = from; at < to; at += 1) found.push(row(list[at], { key: key(list[at]), "data-row": key(list[at]), "aria-rowindex": at + 2 }));
    end = to;
  }
  if (end < list.length) found.push(gap(height(end, list.length), "end", columns));
  return found;
}

function gap(height, place, columns) {
  return h("tr", { class: "gap", key: `\u0000gap ${place}`, "aria-hidden": "true" }, h("td", { colspan: columns, style: { height: `${height}px` } }));
}

/** Measures the drawn rows, and tells which ones are near the screen: [from, to). */
function range(known, list, key) {
  if (list.length <= WHOLE) return { from: 0, to: list.length };
  const body = document.querySelector("tbody.rows");
  if (known.width !== window.innerWidth) Object.assign(known, { heights: new Map(), width: window.innerWidth });
  if (!body || !body.rows.length) return { from: 0, to: Math.min(FIRST, list.length) };
  for (const one of body.rows) if (one.dataset.row !== undefined) known.heights.set(one.dataset.row, one.getBoundingClientRect().height);
  // (Fixed once some rows are known: another guess would move what is on the screen.)
  if (known.guess === GUESS && known.heights.size) known.guess = [...known.heights.values()].reduce((sum, each) => sum + each, 0) / known.heights.size;
  const top = -body.getBoundingClientRect().top;
  let [from, y] = [0, 0];
  const heightOf = (at) => known.heights.get(key(list[at])) ?? known.guess;
  while (from < list.length - 1 && y + heightOf(from) < top - BEYOND) y += heightOf(from++);
  let to = from;
  while (to < list.length && (y < top + window.innerHeight + BEYOND || to - from < 10)) y += heightOf(to++);
  return { from, to };
}

/** The result of `make`, again as long as all of `from` are the same. */
export function kept(memory, name, from, make) {
  const last = memory[name];
  if (last && last.from.length === from.length && last.from.every((each, at) => each === from[at])) return last.made;
  const made = make();
  memory[name] = { from, made };
  return made;
}
