// Applications, searchable by queue, state, user and text; and one of them, with its timeline.

import { button } from "./actions.js";
import { queuePart } from "./api.js";
import { timeline } from "./chart.js";
import { pointer } from "./crosshair.js";
import { h } from "./dom.js";
import { absence, asApplication, fromHistory, lastLife, lives, pastAllocations } from "./ended.js";
import { ago, count, duration, grouped, moment, ms, of, resource, types } from "./format.js";
import { life } from "./life.js";
import { absent, chip, dotted, field, figure, options, paged, quantities, sortable } from "./parts.js";
import { kept, near } from "./rows.js";
import { ofApplication, progress, since } from "./view-gangs.js";
import { foretold, when } from "./when.js";
import { reason } from "./words.js";

export const title = "Applications";
export const every_ms = 3000;

const PAGE = 100;
const LANES = 60;
const ACTIVE = ["New", "Accepted", "Running", "Completing", "Failing", "Resuming"];
const OVER = ["Completed", "Failed"];
const REMOVED = "Removed"; // only in the history
const PAST = 200; // lives of one answer of the history
const PAST_EVERY_MS = 15_000;
// The view searches this many of the newest events for an application's own; older ones only on demand.
const EVENTS_BATCH = 5000;
const EVENTS_LOOKED_AT = 20_000;

export async function load(context) {
  return context.thing ? loadOne(context) : loadList(context);
}

export function render(context, data) {
  return data.kind === "one" ? renderOne(context, data) : renderList(context, data);
}

// ---- the list -------------------------------------------------------------------------------------------------------

async function loadList(context) {
  const { state = "", queue = "" } = context.params;
  const { queues } = await context.get(["metrics", "snapshot"], { sections: "queues", partition: context.partition });
  const at = ["partition", context.partition];
  // REST lists the applications of a leaf. For a parent, the view asks for the whole partition.
  const leaf = queues.some((each) => each.leaf && each.path === queue);
  const within = leaf ? [...at, "queue", queuePart(queue)] : at;
  const asked = [];
  if (state === "" || state === "all") asked.push(context.get([...within, "applications", "active"]));
  else if (ACTIVE.includes(state)) asked.push(context.get([...within, "applications", "active"], { status: state }));
  if (state === "all" || OVER.includes(state)) asked.push(context.get([...at, "applications", "completed"]));
  if (state === "all" || state === "Rejected") asked.push(context.get([...at, "applications", "rejected"]));
  const found = await Promise.all(asked);
  const past = state === "all" || state === REMOVED || state === "Rejected" || OVER.includes(state) ? await history(context) : null;
  // The answer has thousands of allocations; the view keeps only their number.
  const apps = found.flat().map(light);
  return { kind: "list", queues: queues.map((each) => each.path), apps: past ? [...apps, ...otherLives(past.lives, apps)] : apps, past };
}

/** The ended applications of the history: the newest, and as many older ones as the reader wanted. */
async function history(context) {
  const { q = "" } = context.params;
  const known = context.memory.past?.q === q ? context.memory.past : (context.memory.past = { q, older: [], next: null, further: false });
  if (Date.now() - (known.at ?? 0) > PAST_EVERY_MS) Object.assign(known, { newest: await lives(context, "application", { q, count: PAST }), at: Date.now() });
  const { newest } = known;
  if (known.next === null && !newest.failed) known.next = newest.next;
  if (known.further && known.next) {
    known.further = false;
    const more = await lives(context, "application", { q, count: PAST, before: known.next });
    known.older.push(...more.ended);
    known.next = more.next;
  }
  const every = new Map([...newest.ended, ...known.older].map((each) => [`${each.name} ${each.end}`, each]));
  return { lives: [...every.values()], next: known.next, note: newest.note };
}

/** The lives of the history that the view's lists do not have. */
function otherLives(ended, apps) {
  const shown = new Map(apps.map((app) => [app.id, app.submitted]));
  return ended.filter((each) => !shown.has(each.name) || each.end < shown.get(each.name)).map((each) => ({
    id: each.name, key: `${each.name} ${each.end}`, state: each.state, queue: each.queueName ?? "", user: each.user ?? "", used: {}, pending: {},
    allocations: 0, asks: 0, submitted: each.begin, finished: each.end, why: each.message ?? "",
  }));
}

function light(app) {
  return {
    id: app.applicationID, state: app.applicationState, queue: app.queueName, user: app.user ?? "",
    used: app.usedResource ?? {}, pending: app.pendingResource ?? {}, allocations: app.allocations?.length ?? 0,
    asks: (app.requests ?? []).reduce((sum, each) => sum + (each.pendingCount ?? 1), 0), submitted: app.submissionTime ?? 0, finished: app.finishedTime ?? 0,
    why: app.rejectedMessage || app.requests?.find((each) => each.pendingReason)?.pendingReason.code || "",
  };
}

const ORDERS = {
  __proto__: null, // the address names one
  id: (app) => app.id, state: (app) => app.state, queue: (app) => app.queue, user: (app) => app.user,
  used: (app) => of(app.used, "vcore") * 1e6 + of(app.used, "memory") / 1e6, allocations: (app) => app.allocations, asks: (app) => app.asks, submitted: (app) => app.submitted,
};

function matching(apps, { state = "", queue = "", user = "", q = "" }) {
  const wanted = q.toLowerCase();
  return apps.filter((app) =>
    (state === "all" || (state === "" ? ACTIVE.includes(app.state) : app.state === state)) &&
    (!queue || app.queue === queue || app.queue.startsWith(`${queue}.`)) &&
    (!user || app.user === user) &&
    (!wanted || app.id.toLowerCase().includes(wanted) || app.queue.toLowerCase().includes(wanted) || app.user.toLowerCase().includes(wanted)));
}

function sorted(apps, sort) {
  const order = ORDERS[sort.replace(/^-/, "")] ?? ORDERS.submitted;
  const down = sort.startsWith("-") ? -1 : 1;
  return apps.sort((a, b) => {
    const [one, other] = [order(a), order(b)];
    return (one < other ? -1 : one > other ? 1 : 0) * down || (a.id < b.id ? -1 : 1);
  });
}

function renderList(context, { apps, queues, past }) {
  const { state = "", queue = "", user = "", q = "", sort = "-submitted" } = context.params;
  const set = (params, again) => context.set(params, { again });
  const found = kept(context.memory, "found", [apps, state, queue, user, q, sort], () => sorted(matching(apps, context.params), sort));
  const users = kept(context.memory, "users", [apps, user], () => [...new Set([...apps.map((app) => app.user), user].filter(Boolean))].sort());
  const by = (change) => set({ sort: change }, false);
  const filtered = state || queue || user || q;
  return [
    h("h1", {}, "Applications"),
    h("form", { class: "filters", role: "search", "aria-label": "Filter applications", on: { submit: (event) => event.preventDefault() } },
      field("Text", h("input", { type: "search", name: "q", value: q, placeholder: "id, queue or user", on: { input: (event) => set({ q: event.target.value }, false) } })),
      field("State", h("select", { name: "state", value: state, on: { change: (event) => set({ state: event.target.value }) } },
        options([...ACTIVE, ...OVER, "Rejected", REMOVED, ["all", "All, ended ones included"]], "Active"))),
      field("Queue", h("select", { name: "queue", value: queue, on: { change: (event) => set({ queue: event.target.value }) } }, options(queue && !queues.includes(queue) ? [...queues, queue] : queues, "All"))),
      field("User", h("select", { name: "user", value: user, on: { change: (event) => set({ user: event.target.value }, false) } }, options(users, "All"))),
      filtered ? h("button", { type: "button", class: "quiet", on: { click: () => set({ q: "", state: "", queue: "", user: "" }) } }, "Clear") : null),
    h("p", { class: "count", role: "status" }, filtered ? `${count(found.length, "application")} of ${grouped(apps.length)}` : count(found.length, "application")),
    found.length
      ? h("table", { class: "list apps", "aria-rowcount": found.length + 1 },
          h("caption", { class: "sr" }, "Applications"),
          h("thead", {}, h("tr", {},
            sortable("Application", "id", sort, by), sortable("State", "state", sort, by), sortable("Queue", "queue", sort, by, { class: "wide" }), sortable("User", "user", sort, by, { class: "wide" }),
            sortable("Uses", "used", sort, by, { class: "medium takes", "data-first": "down" }), sortable("Allocations", "allocations", sort, by, { class: "num medium", "data-first": "down" }),
            sortable("Pending asks", "asks", sort, by, { class: "num", "data-first": "down" }), sortable("Submitted", "submitted", sort, by, { class: "num medium", "data-first": "down" }))),
          h("tbody", { class: "rows" }, near(context, found, { key: (app) => app.key ?? app.id, row: (app, props) => row(context, app, props), columns: 8 })))
      : h("p", { class: "empty" }, filtered ? "No application matches." : "No application is active."),
    past ? h("p", { class: "note" }, past.note || "With what ended, from the history. ",
      past.next ? h("button", { type: "button", class: "quiet", on: { click: () => { context.memory.past.further = true; context.wake(); } } }, "Look further back") : null) : null,
  ];
}

function row(context, app, props) {
  return h("tr", props,
    h("th", { scope: "row" }, h("a", { href: context.link("applications", app.id) }, app.id), h("span", { class: "narrow note" }, dotted(app.queue), ` · ${app.user} · `, h("span", { class: "nobreak" }, ago(app.submitted)))),
    h("td", {}, chip(app.state), app.state === "Rejected" ? h("span", { class: "note" }, app.why) : null),
    h("td", { class: "wide" }, h("a", { class: "plainlink", href: context.link("queues", app.queue) }, dotted(app.queue))),
    h("td", { class: "wide any" }, app.user ? h("a", { class: "plainlink", href: context.link("users", app.user) }, app.user) : "–"),
    h("td", { class: "medium" }, quantities(app.used, "–")),
    h("td", { class: "num medium" }, grouped(app.allocations)),
    h("td", { class: "num" }, app.asks ? h("a", { class: "more", href: context.link("applications", app.id), title: reason(app.why) }, grouped(app.asks)) : "–"),
    h("td", { class: "num medium" }, app.submitted ? h("time", { title: moment(app.submitted) }, ago(app.submitted)) : "–"));
}

// ---- one application ------------------------------------------------------------------------------------------------

async function loadOne(context) {
  const { memory } = context;
  let [app, why] = memory.over ?? await Promise.all([
    context.find(["partition", context.partition, "application", context.thing]),
    context.find(["explain", "application", context.thing], { partition: context.partition }),
  ]);
  app ??= await listed(context, why);
  if (!app) {
    const [elsewhere, gone] = await Promise.all([context.elsewhere("application", context.thing), lastLife(context, "application", true)]);
    return { kind: "one", app, elsewhere, gone };
  }
  memory.twins ??= await twins(context);
  await follow(context);
  return { kind: "one", app, why, story: memory.story, twins: memory.twins };
}

/** YuniKorn's path of one application lacks ended ones and ids with a slash. The lists have them. */
async function listed(context, why) {
  const at = ["partition", context.partition];
  const lives = why && ACTIVE.includes(why.state);
  const lists = lives ? [[...at, "queue", queuePart(why.queue), "applications"]] : [[...at, "applications", "completed"], [...at, "applications", "rejected"]];
  for (const list of lists) {
    const app = (await context.get(list)).find((each) => each.applicationID === context.thing);
    if (app && !lives) context.memory.over = [app, why]; // an ended application does not change any more
    if (app) return app;
  }
  return null;
}

/** Applications with the same id in other partitions: events do not name the partition. */
async function twins(context) {
  const others = await context.elsewhere("application", context.thing);
  const found = await Promise.all(others.map((partition) => context.find(["partition", partition, "application", context.thing])));
  return others.map((partition, at) => ({ partition, keys: keysOf(found[at]) }));
}

function keysOf(app) {
  return new Set([...(app?.allocations ?? []), ...(app?.requests ?? [])].map((each) => each.allocationKey));
}

/** This application's events, without those that certainly belong to another one. */
function own(app, events, others) {
  if (!others.length) return events;
  const mine = keysOf(app);
  return events.filter((event) => mine.has(event.referenceID) || !others.some(({ keys }) => keys.has(event.referenceID)));
}

/** Reads this application's events: first among the newest ones, then the new ones. */
async function follow(context) {
  const { memory } = context;
  const story = (memory.story ??= { events: [], next: null, oldest: null, begun: false, looked: 0, further: false });
  if (story.next === null) {
    const newest = (await context.page(["events", "batch"], { count: 1 })).data;
    story.next = newest.HighestID + 1;
    story.oldest = story.next;
    story.instance = newest.InstanceUUID;
    await back(context, story, EVENTS_LOOKED_AT);
  }
  if (story.further) {
    story.further = false;
    await back(context, story, EVENTS_LOOKED_AT);
  }
  for (let round = 0; round < 10; round += 1) {
    const { data, headers } = await context.page(["events", "batch"], { start: story.next, count: EVENTS_BATCH });
    if (data.InstanceUUID !== story.instance) {
      delete memory.story; // the ids restart
      return;
    }
    const records = data.EventRecords ?? [];
    story.events.push(...records.filter((event) => event.type === 2 && event.objectID === context.thing));
    story.next = Number(headers.get("x-muster-next-id") ?? story.next + records.length);
    if (records.length < EVENTS_BATCH) break;
  }
}

async function back(context, story, most) {
  const { memory } = context;
  const until = Math.max(0, story.oldest - most);
  while (story.oldest > until && !story.begun) {
    const start = Math.max(until, story.oldest - EVENTS_BATCH);
    const { data } = await context.page(["events", "batch"], { start, count: story.oldest - start });
    const mine = (data.EventRecords ?? []).filter((event) => event.type === 2 && event.objectID === context.thing);
    story.events.unshift(...mine);
    story.begun = !memory.twins.length && mine.some((event) => event.eventChangeType === 1 && event.eventChangeDetail === 203) || start === 0;
    story.looked += story.oldest - start;
    story.oldest = start;
  }
}

function renderOne(context, { app: present, why, story, twins = [], elsewhere, gone }) {
  const back = h("p", { class: "crumb" }, h("a", { href: context.link("applications") }, "Applications"));
  const past = present || elsewhere?.length ? null : gone?.life; // (events name no partition)
  if (!present && !past) return [back, h("h1", {}, context.thing), absent(context, "applications", absence(gone, "application"), elsewhere)];
  const app = present ?? asApplication(past);
  const now = Date.now();
  const found = life(app, past ? past.events ?? [] : own(app, story?.events ?? [], twins), now);
  const held = app.allocations ?? [];
  const waiting = why?.asks ?? [];
  const rows = Number(context.params.lanes) || LANES;
  return [
    back,
    h("div", { class: "head" }, h("h1", {}, app.applicationID), chip(app.applicationState)),
    past ? fromHistory(past) : null,
    why && !app.rejectedMessage ? h("p", { class: "prose" }, why.sentence ?? why.message) : null,
    app.rejectedMessage ? h("p", { class: "trouble" }, `Rejected: ${app.rejectedMessage}`) : null,
    past ? null : actions(context, app),
    h("dl", { class: "figures" },
      h("div", { class: "figure" }, h("dt", {}, "Queue"), h("dd", {}, h("a", { href: context.link("queues", app.queueName) }, app.queueName))),
      h("div", { class: "figure" }, h("dt", {}, "User"), h("dd", {}, app.user ? h("a", { href: context.link("users", app.user) }, app.user) : "–", why?.group ? h("span", { class: "note" }, "counts in group ", h("a", { href: context.link("groups", why.group) }, why.group)) : null)),
      app.submissionTime ? figure("Submitted", ago(app.submissionTime, now), moment(app.submissionTime)) : null,
      app.finishedTime && app.submissionTime ? figure("Took", duration(ms(app.finishedTime - app.submissionTime))) : null,
      figure("Allocations", grouped(past ? past.allocations ?? 0 : held.length), past ? "in all" : resource(app.usedResource ?? {})),
      figure("Pending asks", grouped(waiting.reduce((sum, each) => sum + each.count, 0)), types(app.pendingResource).length ? resource(app.pendingResource) : null)),
    waiting.length || foretold(context).length ? h("section", { class: "card", "aria-labelledby": "whyasks" }, h("h2", { id: "whyasks" }, "Why asks are pending"), whys(context, app.applicationID, waiting), formerly(why?.history ?? [], now)) : null,
    ofApplication(context, why),
    why?.gang ? gang(why, app) : null,
    h("section", { class: "card", "aria-labelledby": "life" },
      h("h2", { id: "life" }, "Timeline"),
      timeline(found, { width: context.width - 26, rows, pointed: pointer(context, "life") }),
      h("p", { class: "legend" }, h("span", { class: "key wait" }, "asked for"), h("span", { class: "key run" }, "allocated"), h("span", { class: "key bad" }, "preempted, timed out or lost")),
      found.asks.length > rows ? h("p", {}, h("button", { type: "button", on: { click: () => context.set({ lanes: found.asks.length }, { again: false }) } }, `Show all ${grouped(found.asks.length)} asks`)) : null,
      story && !story.begun ? h("p", { class: "note" }, `Searched the newest ${grouped(story.looked)} events; its beginning is older. `, h("button", { type: "button", class: "quiet", on: { click: () => { story.further = true; context.wake(); } } }, "Look further back")) : null,
      twins.map(({ partition }) => h("p", { class: "note" }, `Another application has this id, in partition ${partition}. Past events may belong to either, because an event does not name its partition. `, h("a", { href: context.link("applications", context.thing, { partition }) }, "Show that one"))),
      statesTable(app)),
    held.length ? allocations(context, held) : past ? pastAllocations(context, past, "application") : null,
    (app.placeholderData ?? []).length && !why?.gang ? h("p", { class: "note" }, `It had a gang of ${app.placeholderData.map((each) => `${each.count} ${each.taskGroupName}`).join(", ")}.`) : null,
  ];
}

/** Why the asks of an application are pending, equal sentences once; and when they will run. */
export function whys(context, id, asks) {
  const groups = new Map();
  for (const each of asks) {
    const key = `${each.reason}\n${each.message}`;
    if (!groups.has(key)) groups.set(key, { ...each, keys: [], wanted: 0 });
    const group = groups.get(key);
    group.keys.push(each.allocationKey);
    group.wanted += each.count;
    group.since = Math.min(group.since || Infinity, each.since || Infinity);
  }
  return [h("ul", { class: "whys" }, [...groups.values()].map((each) =>
    h("li", { key: `${each.reason}${each.message}` },
      h("p", { class: "prose" }, each.message),
      h("p", { class: "note" }, h("b", {}, reason(each.reason)), ` · ${count(each.wanted, "allocation")} of ${resource(each.resource)}`,
        Number.isFinite(each.since) && each.since ? ` · for ${duration(Date.now() - ms(each.since))}` : "",
        h("span", { class: "keys" }, ` · ${each.keys.slice(0, 3).join(", ")}${each.keys.length > 3 ? ` and ${grouped(each.keys.length - 3)} more` : ""}`))))),
  when(context, id, asks)];
}

/** The earlier reasons of the application's asks, with their times. */
function formerly(history, now) {
  if (history.length < 2) return null;
  return h("details", {}, h("summary", {}, "Earlier reasons"),
    h("table", { class: "list" }, h("caption", { class: "sr" }, "Earlier reasons"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Reason"), h("th", { scope: "col", class: "medium" }, "Where"), h("th", { scope: "col" }, "From"), h("th", { scope: "col", class: "num" }, "For"))),
      h("tbody", {}, history.map((each, at) => h("tr", { key: at },
        h("th", { scope: "row" }, reason(each.reason), h("span", { class: "note" }, [each.resourceType, each.who].filter(Boolean).join(" · "))),
        h("td", { class: "medium" }, each.limitQueue || "–"), h("td", {}, moment(each.since)),
        h("td", { class: "num" }, duration((each.until ? ms(each.until) : now) - ms(each.since)), each.until ? null : h("span", { class: "note" }, "still")))))));
}

function gang({ gang: found, replacements }, app) {
  return h("section", { class: "card", "aria-labelledby": "gang" },
    h("h2", { id: "gang" }, "Gang"),
    progress(found, since(app)),
    replacements?.length ? h("details", {}, h("summary", {}, count(replacements.length, "replacement")), h("ul", { class: "plain" }, replacements.slice(0, 100).map((each) => h("li", {}, each.message)))) : null);
}

function statesTable(app) {
  const log = app.stateLog ?? [];
  return h("details", {}, h("summary", {}, "States"),
    h("table", { class: "list" }, h("caption", { class: "sr" }, "States of the application"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "State"), h("th", { scope: "col" }, "From"), h("th", { scope: "col", class: "num" }, "For"))),
      h("tbody", {}, log.map((each, at) => h("tr", { key: at }, h("th", { scope: "row" }, chip(each.applicationState)), h("td", {}, moment(each.time)),
        h("td", { class: "num" }, log[at + 1] ? duration(ms(log[at + 1].time - each.time)) : "–"))))));
}

function allocations(context, held) {
  const { shown, pager } = paged(context, held, PAGE, "allocations");
  return h("section", { class: "card", "aria-labelledby": "held" },
    h("h2", { id: "held" }, "Allocations"),
    h("table", { class: "list" }, h("caption", { class: "sr" }, "Allocations of the application"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Key"), h("th", { scope: "col" }, "Node"), h("th", { scope: "col", class: "medium" }, "Takes"), h("th", { scope: "col", class: "num" }, "Since"))),
      h("tbody", {}, shown.map((each) => h("tr", { key: `${each.allocationKey} ${each.uuid ?? ""}` },
        h("th", { scope: "row" }, each.allocationKey, each.placeholder ? h("span", { class: "note" }, `placeholder of ${each.taskGroupName}`) : null),
        h("td", {}, h("a", { class: "plainlink", href: context.link("nodes", each.nodeId) }, each.nodeId)),
        h("td", { class: "medium" }, quantities(each.resource)),
        h("td", { class: "num" }, ago(each.bindTime ?? each.allocationTime)))))),
    pager);
}

// The states of an application that an operator can end; and the key with which its RM declares that it can.
const ENDABLE = new Set(["New", "Accepted", "Running", "Completing", "Resuming"]);
const ENDS = "muster.applications.end";

function actions(context, app) {
  const manager = context.managers.find((each) => each.rmID === context.rm);
  if (!ENDABLE.has(app.applicationState) || manager?.extraConfig?.[ENDS]?.trim().toLowerCase() !== "true") return null;
  const done = button(context, "end-application", {
    label: "End", title: `End ${app.applicationID}?`, verb: "End", reason: true,
    query: { application: app.applicationID, partition: context.partition },
    says: "Its pending asks go, and its resource manager ends what runs. This cannot be undone.",
  });
  return done ? h("div", { class: "choice" }, done) : null;
}
