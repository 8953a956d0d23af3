// An application's timeline, made of its state log, its present state and its events.

import { clock, duration, ms, natural } from "./format.js";

const APP = 2;
const NODE = 3;
const ADD = 2;
const REMOVE = 3;
const REQUEST = 201;
const ALLOCATED = 200;
const WITHDRAWN = { 100: "dropped with its application", 102: "released: its gang timed out", 201: "withdrawn" };
const ENDED = {
  500: ["released", "released"],
  501: ["preempted", "preempted"],
  502: ["timedout", "ended: its time was over"],
  503: ["replaced", "replaced by a real allocation"],
  504: ["lost", "lost with its node"],
};

/**
 * The life of each ask and allocation of an application, and how many there were at each time.
 * @param app the application as REST has it
 * @param events its own events, oldest first
 * @param now in milliseconds
 */
export function life(app, events, now) {
  const asks = new Map();
  const ask = (key) => {
    if (!asks.has(key)) asks.set(key, { key, asked: null, bound: null, ended: null, how: "", said: "", placeholder: false });
    return asks.get(key);
  };
  for (const event of events) {
    // (Only the history has a node's events among an application's.)
    if (event.type === NODE && event.eventChangeType === ADD && asks.has(event.referenceID)) asks.get(event.referenceID).node = event.objectID;
    if (event.type !== APP || !event.referenceID) continue;
    const at = ms(event.timestampNano);
    const detail = event.eventChangeDetail ?? 0;
    const one = ask(event.referenceID);
    if (event.eventChangeType === ADD && detail === REQUEST) Object.assign(one, { asked: at, bound: null, ended: null, how: "", said: "" });
    else if (event.eventChangeType === ADD && detail === ALLOCATED) Object.assign(one, { asked: one.asked ?? at, bound: at, ended: null, how: "" });
    else if (event.eventChangeType === REMOVE && detail in ENDED) Object.assign(one, { ended: at, how: ENDED[detail][0], said: event.message || ENDED[detail][1] });
    else if (event.eventChangeType === REMOVE && detail in WITHDRAWN && one.bound === null) Object.assign(one, { asked: one.asked ?? at, ended: at, how: "withdrawn", said: WITHDRAWN[detail] });
  }
  // Takes the present state from REST, because its events may be too old to be stored.
  for (const each of app.allocations ?? []) {
    const one = ask(each.uuid && asks.has(each.uuid) ? each.uuid : each.allocationKey);
    Object.assign(one, { asked: one.asked ?? ms(each.requestTime ?? each.allocationTime), bound: ms(each.bindTime ?? each.allocationTime), ended: null, how: "", placeholder: !!each.placeholder, node: each.nodeId });
  }
  for (const each of app.requests ?? []) {
    const one = ask(each.allocationKey);
    if (one.bound === null || one.ended !== null) Object.assign(one, { asked: one.asked ?? ms(each.requestTime), bound: null, ended: null, how: "", placeholder: !!each.placeholder });
  }
  const found = [...asks.values()].filter((each) => each.asked !== null || each.bound !== null);
  found.sort((a, b) => (a.asked ?? a.bound) - (b.asked ?? b.bound) || natural.compare(a.key, b.key));
  const states = statesOf(app, now);
  const over = states.length && states.at(-1).to !== null;
  const begin = Math.min(...states.map((each) => each.from), ...found.map((each) => each.asked ?? each.bound), ms(app.submissionTime || now * 1e6));
  const end = over ? Math.max(...states.map((each) => each.to), ...found.map((each) => each.ended ?? each.bound ?? 0)) : now;
  for (const each of found) each.told = toldOf(each, end);
  const load = loadOf(found, begin);
  return { from: begin, to: Math.max(end, begin + 1), states, asks: found, load, told: told(app, states, found, load) };
}

const OVER = new Set(["Completed", "Failed", "Rejected", "Removed", "Expired"]);

function statesOf(app, now) {
  const log = app.stateLog ?? [];
  const found = log.map((each, place) => ({ state: each.applicationState, from: ms(each.time), to: log[place + 1] ? ms(log[place + 1].time) : null }));
  const last = found.at(-1);
  // The end is a moment. It is shown as a short last piece.
  if (last && OVER.has(last.state)) last.to = Math.min(now, last.from + Math.max(1, (last.from - found[0].from) * 0.08));
  return found;
}

function loadOf(asks, begin) {
  const steps = [];
  for (const each of asks) {
    if (each.asked !== null) steps.push([each.asked, 0, 1]);
    if (each.bound !== null) steps.push([each.bound, 1, each.asked !== null ? -1 : 0]);
    if (each.ended !== null) steps.push(each.bound !== null ? [each.ended, -1, 0] : [each.ended, 0, -1]);
  }
  steps.sort((a, b) => a[0] - b[0]);
  const load = [{ at: begin, running: 0, waiting: 0 }];
  for (const [at, running, waiting] of steps) {
    const last = load.at(-1);
    const next = { at, running: last.running + running, waiting: last.waiting + waiting };
    if (last.at === at) Object.assign(last, next);
    else load.push(next);
  }
  return load;
}

function toldOf(each, end) {
  const words = [`${each.key}:`];
  if (each.bound === null) {
    words.push(`waited ${duration((each.ended ?? end) - each.asked)}`);
    if (each.said) words.push(`(${each.said})`);
    return words.join(" ");
  }
  if (each.asked !== null) words.push(`waited ${duration(each.bound - each.asked)},`);
  words.push(`allocated at ${clock(each.bound, { millis: true })}`);
  if (each.node) words.push(`on ${each.node}`);
  words.push(each.ended === null ? "and still running" : `for ${duration(each.ended - each.bound)}: ${each.said}`);
  return words.join(" ");
}

function told(app, states, asks, load) {
  const last = load.at(-1);
  const path = states.map((each) => each.state).join(", ");
  return `Timeline of ${app.applicationID}: ${path}. ${asks.length} asks in all, ${last.running} allocated and ${last.waiting} pending at the end.`;
}
