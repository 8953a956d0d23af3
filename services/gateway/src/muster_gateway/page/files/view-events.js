// New events from one stream, which is closed while the page is hidden.

import { ApiError, lines } from "./api.js";
import { h } from "./dom.js";
import { clock, grouped, ms } from "./format.js";
import { field, options } from "./parts.js";
import { TYPES, aboutGroup, sentence } from "./words.js";

export const title = "Events";
// The stream delivers the events. This is the interval of the check that the stream is open.
export const every_ms = 1000;

const KEPT = 2000;
const SHOWN = 300;
const OF_THE_PAST = 200;
// A burst is drawn at this interval, not with each event.
const DRAW_EVERY_MS = 250;

export async function load(context) {
  const { memory } = context;
  memory.events ??= [];
  if (memory.failed) {
    const error = memory.failed;
    memory.failed = null;
    throw error;
  }
  if (!memory.open && !memory.paused) await listen(context);
  return { events: memory.events };
}

async function listen(context) {
  const { memory } = context;
  const query = memory.next === undefined ? { count: OF_THE_PAST, state: false } : { start: memory.next, state: false };
  const cut = new AbortController();
  let response;
  try {
    response = await context.stream(["events", "stream"], query, cut.signal);
  } catch (error) {
    // The ids restarted: continue with the newest.
    if (error instanceof ApiError && error.status === 400 && memory.next !== undefined) memory.next = undefined;
    throw error;
  }
  memory.open = cut;
  memory.next = Number(response.headers.get("x-muster-next-id") ?? memory.next ?? 0);
  take(context, response, cut);
}

async function take(context, response, cut) {
  const { memory } = context;
  let drawn = 0;
  const draw = () => {
    drawn = 0;
    if (!context.signal.aborted) context.redraw();
  };
  const hidden = () => { if (document.hidden) cut.abort(); };
  document.addEventListener("visibilitychange", hidden);
  try {
    for await (const line of lines(response)) {
      if (memory.open !== cut) break;
      const event = JSON.parse(line);
      if (event.InstanceUUID !== undefined) {
        if (event.NextID !== undefined) memory.next = event.NextID;
        continue;
      }
      if (event.status_code !== undefined) break;
      memory.events.unshift({ ...event, id: memory.next });
      memory.next += 1;
      if (memory.events.length > KEPT) memory.events.length = KEPT;
      drawn ||= setTimeout(draw, DRAW_EVERY_MS);
    }
  } catch (error) {
    if (!context.signal.aborted && !cut.signal.aborted) memory.failed = new ApiError(0, "The stream of events ended.");
  } finally {
    document.removeEventListener("visibilitychange", hidden);
    cut.abort();
    if (memory.open === cut) memory.open = null;
    if (!context.signal.aborted) context.wake();
  }
}

export function render(context, { events }) {
  const { type = "", q = "" } = context.params;
  const { memory } = context;
  const wanted = q.toLowerCase();
  const found = [];
  for (const event of events) {
    if (type && String(event.type) !== type) continue;
    if (wanted && !`${event.objectID} ${event.referenceID ?? ""} ${event.message ?? ""}`.toLowerCase().includes(wanted)) continue;
    found.push(event);
    if (found.length === SHOWN) break;
  }
  const set = (params) => context.set(params, { again: false });
  const pause = () => {
    memory.paused = !memory.paused;
    if (memory.paused) memory.open?.abort();
    context.redraw();
    context.wake();
  };
  return [
    h("h1", {}, "Events"),
    h("form", { class: "filters", role: "search", "aria-label": "Filter events", on: { submit: (event) => event.preventDefault() } },
      field("Text", h("input", { type: "search", name: "q", value: q, placeholder: "name or message", on: { input: (event) => set({ q: event.target.value }) } })),
      field("About", h("select", { name: "type", value: type, on: { change: (event) => set({ type: event.target.value }) } }, options(Object.entries(TYPES).filter(([number]) => number !== "1").map(([number, name]) => [number, number === "5" ? "User or group" : name]), "Everything"))),
      h("button", { type: "button", "aria-pressed": String(!!memory.paused), on: { click: pause } }, memory.paused ? "Resume" : "Pause")),
    h("p", { class: "count" }, memory.paused ? "Paused: no new events are read until you resume." : `Newest first; the last ${grouped(Math.min(SHOWN, found.length))} of ${grouped(events.length)} read${context.partitions.length > 1 ? ", of all partitions" : ""}.`),
    found.length ? h("ol", { class: "events" }, found.map((event) => line(context, event))) : h("p", { class: "empty" }, events.length ? "No event matches." : "No event yet. Events appear here as they occur."),
  ];
}

const VIEW_OF = { 2: "applications", 3: "nodes", 4: "queues", 5: "users" };

function line(context, event) {
  const view = event.objectID === "*" ? null : aboutGroup(event) ? "groups" : VIEW_OF[event.type];
  const at = ms(event.timestampNano);
  return h("li", { key: event.id, class: `t${event.type}` },
    h("time", { datetime: new Date(at).toISOString() }, clock(at, { millis: true })),
    h("span", { class: "type" }, aboutGroup(event) ? "Group" : TYPES[event.type] ?? `type ${event.type}`),
    h("span", {}, view ? h("a", { href: context.link(view, event.objectID) }, event.objectID) : h("b", {}, event.objectID), ` ${sentence(event)}`));
}
