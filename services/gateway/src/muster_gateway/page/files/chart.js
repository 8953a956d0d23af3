// Plots over time, as SVG: a line with an area, and its axes.

import { crosshair } from "./crosshair.js";
import { h, s } from "./dom.js";
import { clock, day, duration, number } from "./format.js";

const LEFT = 46;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 22;

/** Round steps for an axis from 0 to at least `most`: at most five. */
export function steps(most) {
  if (!(most > 0)) return [0, 1];
  const rough = most / 4;
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, base * [1, 2, 5, 10].find((each) => each * base >= rough));
  const found = [];
  for (let value = 0; value < most + step; value += step) found.push(value);
  return found;
}

const TIMES_MS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400].map((each) => each * 1000);

/** Round times between two, at most `most` of them. */
function ticks(from, to, most) {
  const step = TIMES_MS.find((each) => (to - from) / each <= most) ?? Math.ceil((to - from) / most / 86_400_000) * 86_400_000;
  const zone = new Date(from).getTimezoneOffset() * 60_000;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) found.push(at);
  return found;
}

/** The axis of times below a plot. */
function timeAxis(from, to, x, bottom, width) {
  const label = to - from > 2 * 86_400_000 ? day : (at) => clock(at, { seconds: to - from < 300_000 });
  return ticks(from, to, Math.max(2, Math.floor(width / 90))).map((at) =>
    s("g", {}, s("line", { class: "grid", x1: x(at), x2: x(at), y1: TOP, y2: bottom }),
      // A label at the very edge would be cut off; its line is enough.
      x(at) - x(from) < 24 || x(to) - x(at) < 24 ? null : s("text", { class: "axis", x: x(at), y: bottom + 15, "text-anchor": "middle" }, label(at))));
}

/**
 * One figure over time.
 * @param points [[milliseconds, value], …], oldest first
 * @param options title: the figure's name; width: in pixels; begin: where the axis of times begins, null: with the
 * points; limit: a value that is drawn as a line; empty: what is said without points; pointed: see crosshair.js
 */
export function plot(points, { title, width, pointed, height = 150, kind = "a", now = null, begin = null, limit = 0, empty = "No sample yet." }) {
  const last = points.at(-1);
  if (!last) return h("figure", { class: "plot", key: title }, h("figcaption", {}, h("b", {}, title)), h("p", { class: "empty" }, empty));
  const to = Math.max(last[0], now ?? 0);
  const from = begin ?? Math.min(points[0][0], to - 60_000);
  const values = points.map(([, value]) => value);
  const levels = steps(Math.max(limit, ...values));
  const top = levels.at(-1);
  const bottom = height - BOTTOM;
  const x = (at) => LEFT + ((at - from) / (to - from || 1)) * (width - LEFT - RIGHT);
  const y = (value) => bottom - (value / top) * (bottom - TOP);
  const line = points.map(([at, value], place) => `${place ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const area = `${line}L${x(last[0]).toFixed(1)} ${bottom}L${x(points[0][0]).toFixed(1)} ${bottom}Z`;
  const told = `${title}: ${number(last[1])} now; least ${number(Math.min(...values))}, most ${number(Math.max(...values))} in the last ${duration(to - points[0][0])}.`;
  const near = (share) => {
    const at = from + share * (to - from);
    const [moment, value] = points.reduce((best, each) => (Math.abs(each[0] - at) < Math.abs(best[0] - at) ? each : best), last);
    return { x: x(moment), y: y(value), text: `${to - from > 86_400_000 ? `${day(moment)} ` : ""}${clock(moment)}  ${number(value)}` };
  };
  const cross = crosshair(pointed, { width, left: LEFT, right: RIGHT, top: TOP, bottom }, { near, rest: { x: x(last[0]), y: y(last[1]) }, kind });
  return h("figure", { class: "plot", key: title },
    h("figcaption", {}, h("b", {}, title), " ", h("span", { class: "big" }, number(last[1]))),
    s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told, ...cross.props },
      levels.map((level) => s("g", {},
        s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(level), y2: y(level) }),
        s("text", { class: "axis", x: LEFT - 6, y: y(level) + 4, "text-anchor": "end" }, number(level, top)))),
      timeAxis(from, to, x, bottom, width),
      limit ? s("line", { class: "limit", x1: LEFT, x2: width - RIGHT, y1: y(limit), y2: y(limit) }) : null,
      points.length > 1 ? s("path", { class: `area ${kind}`, d: area }) : null,
      points.length > 1 ? s("path", { class: `line ${kind}`, d: line }) : null,
      cross.parts));
}

// ---- an application's life -------------------------------------------------------------------------------------------

const ROW = 18;
const NAME_SHARE = 0.22;

/** The states and the asks of an application, over time.
 * @param life see life.js
 * @param options width in pixels; rows: how many asks to show; pointed: see crosshair.js
 */
export function timeline(life, { width, rows, pointed }) {
  const names = width < 560 ? 0 : Math.min(220, Math.round(width * NAME_SHARE));
  const left = Math.max(names, 8);
  const from = life.from;
  const to = Math.max(life.to, from + 1000);
  const x = (at) => left + (Math.min(Math.max(at, from), to) - from) / (to - from) * (width - left - RIGHT);
  const shown = life.asks.slice(0, rows);
  const lane = names ? ROW : ROW + 13;
  const statesAt = TOP + 4;
  const loadAt = statesAt + 30;
  const loadHeight = 54;
  const asksAt = loadAt + loadHeight + 16;
  const bottom = asksAt + shown.length * lane + 4;
  const most = Math.max(1, ...life.load.map((each) => each.running + each.waiting));
  const up = (value) => loadAt + loadHeight - (value / most) * loadHeight;
  const outline = (pick) => {
    let path = "";
    life.load.forEach((each, place) => {
      const end = life.load[place + 1]?.at ?? to;
      path += `${place ? "L" : "M"}${x(each.at).toFixed(1)} ${up(pick(each)).toFixed(1)}L${x(end).toFixed(1)} ${up(pick(each)).toFixed(1)}`;
    });
    return path && `${path}L${x(to).toFixed(1)} ${up(0)}L${x(life.load[0].at).toFixed(1)} ${up(0)}Z`;
  };
  const near = (share) => {
    const at = from + share * (to - from);
    const load = life.load.findLast((each) => each.at <= at);
    return load && { x: x(at), y: up(load.running), text: `${clock(at)}  ${number(load.running)} allocated, ${number(load.waiting)} pending` };
  };
  const cross = crosshair(pointed, { width, left, right: RIGHT, top: TOP, bottom, readoutY: loadAt - 2 }, { near });
  return s("svg", { viewBox: `0 0 ${width} ${bottom + BOTTOM}`, class: "timeline", role: "img", "aria-label": life.told, ...cross.props },
    timeAxis(from, to, x, bottom, width - left),
    life.states.map((each) => {
      const end = each.to ?? to;
      const room = x(end) - x(each.from);
      return s("g", {},
        s("title", {}, `${each.state}, from ${clock(each.from, { millis: true })}, for ${duration(end - each.from)}`),
        s("rect", { class: `state ${each.state.toLowerCase()}`, x: x(each.from), y: statesAt, width: Math.max(2, room), height: 20, rx: 3 }),
        room > each.state.length * 7 + 10 ? s("text", { class: "instate", x: x(each.from) + 6, y: statesAt + 14 }, each.state) : null);
    }),
    names ? s("text", { class: "lane", x: 0, y: statesAt + 14 }, "State") : null,
    names ? s("text", { class: "lane", x: 0, y: loadAt + 14 }, "Allocated, pending") : null,
    names ? s("text", { class: "axis", x: 0, y: loadAt + 30 }, `up to ${number(most)}`) : null,
    life.load.length ? s("path", { class: "load waiting", d: outline((each) => each.running + each.waiting) }) : null,
    life.load.length ? s("path", { class: "load running", d: outline((each) => each.running) }) : null,
    s("line", { class: "grid", x1: left, x2: width - RIGHT, y1: up(0), y2: up(0) }),
    shown.map((each, place) => {
      const at = asksAt + place * lane + (names ? 0 : 13);
      const until = each.bound ?? each.ended ?? to;
      return s("g", {},
        s("title", {}, each.told),
        s("text", { class: "lane", x: 0, y: names ? at + 10 : at - 3 }, cut(each.key, names ? Math.floor((names - 10) / 6.6) : Math.floor(width / 7))),
        each.asked !== null && until > each.asked ? s("rect", { class: "wait", x: x(each.asked), y: at + 3, width: Math.max(1, x(until) - x(each.asked)), height: 6, rx: 2 }) : null,
        each.bound !== null ? s("rect", { class: `run ${each.how}`, x: x(each.bound), y: at, width: Math.max(2, x(each.ended ?? to) - x(each.bound)), height: 12, rx: 2 }) : null);
    }),
    cross.parts);
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text;
}
