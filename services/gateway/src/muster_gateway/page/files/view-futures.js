// What if: a pasted queue configuration, and both futures of the asks that wait now, side by side.

import { ApiError, post, url } from "./api.js";
import { crosshair, pointer } from "./crosshair.js";
import { h, s } from "./dom.js";
import { duration, grouped } from "./format.js";

export const title = "What if";
export const every_ms = 30_000;

const AGAIN_MS = 1000;
const [ROWS_MIN, ROWS_MAX] = [10, 24];
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [420, 200, 46, 14, 12, 26];

// Texts and answers, by RM and partition. They stay while the reader looks at other views.
const drafts = new Map();

export async function load(context) {
  const { config } = await context.get(["resource-manager", "configuration"]);
  return { config };
}

export function render(context, { config }) {
  const draft = drafts.get(keyOf(context)) ?? {};
  const may = !!context.me?.mayOperate;
  const text = draft.text ?? config;
  return [
    h("h1", {}, "What if"),
    h("p", { class: "prose" }, "When would the asks that wait now start under another queue configuration? Both futures are simulated from the present state. Nothing is changed.",
      may ? "" : " It needs the right operate."),
    may ? writing(context, text, draft, config) : null,
    draft.found ? futures(draft.found, pointer(context, "futures")) : null,
  ];
}

function keyOf(context) {
  return `${context.rm}\n${context.partition}`;
}

function writing(context, text, draft, config) {
  const input = (event) => {
    drafts.set(keyOf(context), { ...drafts.get(keyOf(context)), text: event.target.value });
    context.redraw();
  };
  const lines = text.split("\n").length;
  return h("div", { class: "writing" },
    h("div", { class: "editor" }, h("span"),
      h("textarea", { name: "other", "aria-label": "Another queue configuration (YAML)", rows: Math.min(ROWS_MAX, Math.max(ROWS_MIN, lines + 1)), wrap: "off", spellcheck: "false", autocomplete: "off", autocapitalize: "off", value: text, on: { input } })),
    h("div", { class: "choice" },
      h("button", { type: "button", disabled: draft.busy || !text.trim(), on: { click: () => simulate(context, text) } }, draft.busy ? "Simulating …" : "Simulate both futures"),
      text !== config ? h("button", { type: "button", class: "quiet", on: { click: () => { drafts.delete(keyOf(context)); context.redraw(); } } }, "Back to the one in force") : null),
    h("div", { role: "status" }, said(draft)));
}

function said({ busy, trouble, found }) {
  if (busy) return h("p", { class: "more" }, "Simulating, at the lowest priority …");
  if (trouble) return h("p", { class: "trouble" }, trouble);
  if (!found) return null;
  return [h("p", { class: found.state === "COMPARED" ? "more" : "trouble" }, found.message),
    found.problems.length ? h("ol", { class: "problems" }, found.problems.map((each) => h("li", {}, h("span", { class: "place" }, "–"), h("span", {}, each)))) : null];
}

/** Asks until the answer is made. */
async function simulate(context, text) {
  const key = keyOf(context);
  const address = url(["ws", "v1", "explain", "futures"], { rm: context.rm, partition: context.partition });
  const put = (more) => {
    drafts.set(key, { ...drafts.get(key), ...more });
    context.redraw();
  };
  put({ text, busy: true, trouble: "", found: null });
  try {
    for (;;) {
      const found = await post(address, text);
      if (found.state !== "MAKING") return put({ busy: false, found });
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      if (context.signal.aborted) return put({ busy: false });
    }
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return put({ busy: false, trouble: error.message });
  }
}

function futures({ queues, rise, state }, pointed) {
  if (state !== "COMPARED") return null;
  if (!queues.length || !rise) return h("p", { class: "empty" }, "No ask waits now.");
  return [
    h("div", { class: "futures" },
      future("As it is", "a", rise.moments, rise.present, pointed), future("With this configuration", "b", rise.moments, rise.other, pointed)),
    table(queues),
  ];
}

/** One future: the share of the waiting asks that have started, over time. */
function future(name, kind, moments, shares, pointed) {
  const last = moments.at(-1);
  const x = (at) => LEFT + (at / last) * (WIDTH - LEFT - RIGHT);
  const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const line = shares.map((share, place) => `${place ? "L" : "M"}${x(moments[place]).toFixed(1)} ${y(share).toFixed(1)}`).join("");
  const half = moments[shares.findIndex((share) => share >= 0.5)];
  const told = `${name}: ${Math.round(100 * shares[0])} % start at once, ${Math.round(100 * shares.at(-1))} % within ${duration(last * 1000)}${half === undefined ? "" : `; half of them within ${duration(half * 1000)}`}.`;
  const near = (part) => {
    const at = moments.reduce((best, each, place) => (Math.abs(each - part * last) < Math.abs(moments[best] - part * last) ? place : best), 0);
    return { x: x(moments[at]), y: y(shares[at]), text: `${moments[at] ? `in ${duration(moments[at] * 1000)}` : "now"}  ${Math.round(100 * shares[at])} %` };
  };
  const cross = crosshair(pointed, { width: WIDTH, left: LEFT, right: RIGHT, top: TOP, bottom: y(0), readoutY: y(0) - 6 }, { near, kind });
  return h("figure", { class: "plot", key: kind },
    h("figcaption", {}, h("b", {}, name), " ", h("span", { class: "big" }, `${Math.round(100 * shares.at(-1))} %`)),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": told, ...cross.props },
      [0, 0.25, 0.5, 0.75, 1].map((share) => s("g", {},
        s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(share), y2: y(share) }),
        s("text", { class: "axis", x: LEFT - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`))),
      [0, 0.5, 1].map((part) => s("text", { class: "axis", x: x(part * last), y: HEIGHT - 8, "text-anchor": ["start", "middle", "end"][2 * part] }, part ? duration(part * last * 1000) : "now")),
      s("path", { class: `area ${kind}`, d: `${line}L${x(last)} ${y(0)}L${x(0)} ${y(0)}Z` }),
      s("path", { class: `line ${kind}`, d: line }),
      cross.parts));
}

function table(queues) {
  const cell = (seconds, kind = "num") => h("td", { class: kind }, seconds === null ? "not in 30 d" : duration(seconds * 1000));
  const heads = [["Queue", null], ["Asks", "num"], ["Half, as it is", "num"], ["Half, with this", "num"], ["95 %, as it is", "num medium"], ["95 %, with this", "num medium"]];
  return h("table", { class: "list compared" }, h("caption", { class: "sr" }, "When the asks of each queue start, in both futures"),
    h("thead", {}, h("tr", {}, heads.map(([each, kind]) => h("th", { scope: "col", class: kind }, each)))),
    h("tbody", {}, queues.map((each) => h("tr", { key: each.queue }, h("th", { scope: "row" }, each.queue), h("td", { class: "num" }, grouped(each.asks)),
      cell(each.present.half), cell(each.other.half), cell(each.present.most, "num medium"), cell(each.other.most, "num medium")))));
}
