// The cluster at a glance: usage, applications, reasons of pending asks, and the last hours.

import { ApiError } from "./api.js";
import { h } from "./dom.js";
import { plot } from "./chart.js";
import { pointer } from "./crosshair.js";
import { count, drawnIn, duration, grouped, ms, number, of, percent, quantity, types, usedOf } from "./format.js";
import { bar, chip, figure, level } from "./parts.js";
import { checksOfState } from "./system-health.js";
import { reason, standing } from "./words.js";

export const title = "Overview";
export const every_ms = 2000;

// The history gets a sample once a minute, and the health checks read the whole state.
const SLOW_EVERY_MS = 20_000;
// The spans of the history: seconds, and about how many of them are one point; 0: a window of derive.window_s.
const SPANS = { "1 h": [3600, 0], "6 h": [21_600, 300], "1 d": [86_400, 900], "7 d": [604_800, 7200] };
// As in style.css, .two: the least width of a plot, and the gap between two.
const [PLOT, GAP] = [360, 14];
const STATES = ["New", "Accepted", "Running", "Completing", "Completed", "Failing", "Failed", "Resuming", "Rejected"];

export async function load(context) {
  const { memory } = context;
  const span = spanOf(context);
  const slow = memory.span !== span || performance.now() - (memory.slowAt ?? -Infinity) > SLOW_EVERY_MS;
  const [snapshot, apps, containers, health, usage] = await Promise.all([
    context.get(["metrics", "snapshot"], { sections: "scheduler,runtime", partition: context.partition }),
    slow ? context.get(["history", "apps"]) : memory.apps,
    slow ? context.get(["history", "containers"]) : memory.containers,
    slow ? context.get(["scheduler", "healthcheck"]) : memory.health,
    slow ? usageOf(context, span) : memory.usage,
  ]);
  if (slow) Object.assign(memory, { span, slowAt: performance.now(), apps, containers, health, usage });
  return { snapshot, span, apps, containers, health, usage, partition: context.partitions.find((each) => each.name === context.partition) };
}

function spanOf({ params: { span } }) {
  return Object.hasOwn(SPANS, span ?? "") ? span : "1 h";
}

/** The root queue's usage from the log, in windows; an error's text if there is none. The rest of the view needs none. */
async function usageOf(context, span) {
  const { memory } = context;
  const [seconds, about] = SPANS[span];
  const base = memory.base ?? 60; // derive.window_s
  const window = Math.ceil(about / base) * base || null;
  try {
    const found = await context.find(["usage"], { kind: "queue", name: "root", from: Math.floor(Date.now() / 1000) - seconds, to: Math.ceil(Date.now() / 1000), window });
    return found ?? { trouble: "No usage is known yet." };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // (Without a window the answer says how long one is.)
    if (error.status === 400 && memory.base === undefined) memory.base = (await context.find(["usage"], { kind: "queue", name: "root" }))?.window ?? 60;
    return { trouble: error.message };
  }
}

export function render(context, { snapshot, span, apps, containers, health, usage, partition }) {
  const { scheduler, runtime } = snapshot;
  const away = standing({ ...context.manager, life: snapshot.state, held: snapshot.paused });
  const alone = context.partitions.length < 2; // the RM's counts for all its partitions are this partition's
  const states = { ...(partition?.applications ?? {}), ...scheduler.applications };
  return [
    h("h1", {}, "Overview"),
    gauges(context, scheduler),
    h("section", { "aria-labelledby": "now" },
      h("h2", { id: "now", class: "sr" }, "Now"),
      h("dl", { class: "figures" },
        figure("Nodes", grouped(scheduler.nodes), scheduler.nodesDraining ? `${grouped(scheduler.nodesDraining)} draining` : null),
        figure("Allocations", grouped(scheduler.allocations)),
        figure("Allocations per second", pace(scheduler.recent), alone ? "last minute" : "last minute, all partitions"),
        figure("From ask to allocation", waited(scheduler.recent, "waitP99Ms"), scheduler.recent?.allocations ? `p99; half within ${waited(scheduler.recent, "waitP50Ms")}` : "p99"),
        figure("Pending asks", grouped(scheduler.asksPending), scheduler.reservations ? count(scheduler.reservations, "reservation") : null),
        away ? figure("Resource manager", away, "see above") : null,
        ...healthFigures(context.health, health, runtime))),
    h("div", { class: "two" },
      h("section", { class: "card", "aria-labelledby": "states" },
        h("h2", { id: "states" }, "Applications"),
        h("ul", { class: "states" }, STATES.filter((each) => of(states, each)).map((each) =>
          h("li", { key: each }, h("a", { href: context.link("applications", "", { state: each }) }, chip(each)), h("b", {}, grouped(states[each]))))),
        STATES.some((each) => of(states, each)) ? null : h("p", { class: "empty" }, "None yet.")),
      waiting(context, scheduler)),
    history(context, { span, usage, apps, containers, alone, scheduler }),
  ];
}

/** The state of the whole, what the checks of the recorded state found, and the age of the figures. */
function healthFigures(health, checks, runtime) {
  const failed = checksOfState(checks, health).filter((each) => !each.Succeeded).length;
  return [
    health.grade ? figure("Health", health.ok ? "good" : health.grade, health.ok ? null : "see above") : null,
    failed ? figure("Checks of the state", "trouble", `${count(failed, "check")} failed`) : null,
    runtime.viewLagRecords ? figure("Figures", `${duration(runtime.viewLagSeconds * 1000)} old`, `${count(runtime.viewLagRecords, "record")} behind`)
      : health.ok ? figure("Figures", "up to date") : null,
  ];
}

/** Charts of the chosen span. Usage is from the log; the view samples the two counts, a day at most. */
function history(context, { span, usage, apps, containers, alone, scheduler }) {
  const now = Date.now();
  const windows = usage.usage?.[0]?.windows ?? [];
  const about = { width: plotWidth(context), now, begin: now - SPANS[span][0] * 1000, pointed: pointer(context, "history") };
  // The shortest span begins with what is known.
  const first = Math.min(now - 60_000, ...windows.slice(0, 1).map((each) => Date.parse(each.start)), ...apps.slice(0, 1).map((each) => ms(each.timestamp)));
  if (span === "1 h") about.begin = Math.max(about.begin, first);
  const since = (points) => points.filter(([at]) => at >= about.begin);
  return h("section", { "aria-labelledby": "history" },
    h("div", { class: "head" },
      h("h2", { id: "history" }, "History", alone ? null : h("span", { class: "beside" }, ` of all ${context.partitions.length} partitions`)),
      h("nav", { class: "tabs", "aria-label": "Span of the history" }, Object.keys(SPANS).map((each) =>
        h("a", { key: each, href: context.link("overview", "", { span: each }), "aria-current": each === span ? "true" : null }, each)))),
    h("div", { class: "two plots" },
      types(scheduler.capacity).map((type) => {
        const { by, unit } = drawnIn(type, of(scheduler.capacity, type));
        const limit = alone ? of(scheduler.capacity, type) / by : 0;
        return plot(averages(usage, windows, type, by, about, alone ? of(scheduler.allocated, type) : null), { ...about, title: `In use: ${unit}`, limit, empty: usage.trouble ?? "Nothing was in use." });
      }),
      windows.length ? plot(windows.map((each) => [Date.parse(each.start), each.allocations]), { ...about, title: `Allocations made in ${duration(usage.window * 1000)}`, kind: "b" }) : null,
      plot(since(apps.map((each) => [ms(each.timestamp), Number(each.totalApplications)])), { ...about, title: "Running applications" }),
      plot(since(containers.map((each) => [ms(each.timestamp), Number(each.totalContainers)])), { ...about, title: "Allocations", kind: "b" })),
    h("p", { class: "note" }, "In use: averages from the log (", h("code", {}, "/ws/v1/usage"), "), which survive a restart. The two counts are samples of the last day since the view started."));
}

/** The average of each window, 0 for those between without usage; and what is in use now (null: not known). */
function averages({ window, known_until: known }, windows, type, by, { begin, now }, present) {
  if (!known) return [];
  const found = new Map(windows.map((each) => [Date.parse(each.start), each]));
  const [step, until] = [window * 1000, Date.parse(known)];
  const points = [];
  for (let at = windows.length ? Date.parse(windows[0].start) : Infinity; at < until; at += step) {
    const long = Math.min(step, until - at);
    points.push([Math.max(at + long / 2, begin), of(found.get(at)?.resource_seconds, type) / (long / 1000) / by]);
  }
  // Since the newest event nothing has changed.
  return present === null ? points : [...points, [Math.max(Math.min(until, now), begin), present / by], [now, present / by]];
}

function plotWidth(context) {
  const columns = Math.max(1, Math.floor((context.width + GAP) / (PLOT + GAP)));
  return Math.floor((context.width - GAP * (columns - 1)) / columns - 26);
}

function gauges(context, scheduler) {
  const found = types(scheduler.capacity, scheduler.allocated);
  if (!found.length && !context.health.ok) {
    return h("section", { class: "blank", key: "unclear" }, h("h2", {}, "No node is known"),
      h("p", {}, `What the resource manager ${context.rm} sent may not have arrived: see above what does not work.`));
  }
  if (!found.length) {
    return h("section", { class: "blank" }, h("h2", {}, "The cluster is empty"),
      h("p", {}, `The resource manager ${context.rm} is registered and has sent no nodes yet. Asks stay pending until it does.`));
  }
  return h("section", { class: "gauges", "aria-label": "Usage of the cluster" }, found.map((type) => {
    const [used, total, pending] = [of(scheduler.allocated, type), of(scheduler.capacity, type), of(scheduler.pending, type)];
    const share = percent(used, total);
    return h("div", { class: `gauge ${level(share)}`, key: type },
      h("div", { class: "head" }, h("h2", {}, type), h("span", { class: "share" }, share === null ? "–" : `${share}%`)),
      bar({ used, total, pending, label: `${type} allocated` }),
      h("p", {}, usedOf(type, used, total), pending ? h("span", { class: "more" }, ` +${quantity(type, pending)} pending`) : null));
  }));
}

function waiting(context, scheduler) {
  const found = Object.entries(scheduler.pendingByReason).sort((a, b) => b[1] - a[1]);
  return h("section", { class: "card", "aria-labelledby": "why" },
    h("h2", { id: "why" }, "Why asks are pending"),
    found.length
      ? h("ul", { class: "reasons" }, found.map(([code, asks]) =>
          h("li", { key: code }, h("a", { href: context.link("pending", "", { reason: code }) }, reason(code)), h("b", {}, grouped(asks)),
            bar({ used: asks, total: scheduler.asksPending, label: `${reason(code)}: share of the pending asks` }))))
      : h("p", { class: "empty" }, "No ask is pending."));
}

function pace(recent) {
  if (!recent) return "–";
  return recent.perSecond >= 10 ? grouped(recent.perSecond) : number(recent.perSecond);
}

/** A quantile of the wait from ask to allocation. */
function waited(recent, quantile) {
  const milliseconds = recent?.[quantile] ?? null;
  return milliseconds === null ? "–" : duration(milliseconds);
}
