// The cluster at a glance: usage, applications, reasons of pending asks, and the last hours.

import { h } from "./dom.js";
import { plot } from "./chart.js";
import { count, duration, grouped, ms, number, of, percent, quantity, types, usedOf } from "./format.js";
import { bar, chip, figure, level } from "./parts.js";
import { reason, standing } from "./words.js";

export const title = "Overview";
export const every_ms = 2000;

// The history gets a sample once a minute, and the health checks read the whole state.
const SLOW_EVERY_MS = 20_000;
const STATES = ["New", "Accepted", "Running", "Completing", "Completed", "Failing", "Failed", "Resuming", "Rejected"];

export async function load(context) {
  const { memory } = context;
  const slow = performance.now() - (memory.slowAt ?? -Infinity) > SLOW_EVERY_MS;
  const [snapshot, apps, containers, health] = await Promise.all([
    context.get(["metrics", "snapshot"], { sections: "scheduler,runtime", partition: context.partition }),
    slow ? context.get(["history", "apps"]) : memory.apps,
    slow ? context.get(["history", "containers"]) : memory.containers,
    slow ? context.get(["scheduler", "healthcheck"]) : memory.health,
  ]);
  if (slow) Object.assign(memory, { slowAt: performance.now(), apps, containers, health });
  const before = memory.snapshot;
  memory.snapshot = snapshot;
  return { snapshot, before, apps, containers, health, partition: context.partitions.find((each) => each.name === context.partition) };
}

export function render(context, { snapshot, before, apps, containers, health, partition }) {
  const { scheduler, runtime } = snapshot;
  const away = standing({ life: snapshot.state, held: snapshot.paused });
  const alone = context.partitions.length < 2; // the RM's counts for all its partitions are this partition's
  const states = { ...(partition?.applications ?? {}), ...scheduler.applications };
  return [
    h("h1", {}, "Overview"),
    gauges(context, scheduler),
    h("section", { "aria-labelledby": "now" },
      h("h2", { id: "now", class: "sr" }, "Now"),
      h("dl", { class: "figures" },
        figure("Nodes", grouped(scheduler.nodes), scheduler.nodesDraining ? `${grouped(scheduler.nodesDraining)} draining` : null),
        figure("Allocations", grouped(scheduler.allocations), alone ? rate(before, snapshot) : null),
        figure("Pending asks", grouped(scheduler.asksPending), scheduler.reservations ? count(scheduler.reservations, "reservation") : null),
        figure("Time per decision", decision(before, snapshot), "on average"),
        away ? figure("Resource manager", away, "see above") : null,
        figure("Health", health.Healthy && away ? "of the state: good" : health.Healthy ? "good" : "trouble", health.Healthy ? null : count(health.HealthChecks.filter((each) => !each.Succeeded).length, "check") + " failed"),
        figure("Figures", runtime.viewLagRecords ? `${duration(runtime.viewLagSeconds * 1000)} old` : "up to date", runtime.viewLagRecords ? `${count(runtime.viewLagRecords, "record")} behind` : null))),
    h("div", { class: "two" },
      h("section", { class: "card", "aria-labelledby": "states" },
        h("h2", { id: "states" }, "Applications"),
        h("ul", { class: "states" }, STATES.filter((each) => of(states, each)).map((each) =>
          h("li", { key: each }, h("a", { href: context.link("applications", "", { state: each }) }, chip(each)), h("b", {}, grouped(states[each]))))),
        STATES.some((each) => of(states, each)) ? null : h("p", { class: "empty" }, "None yet.")),
      waiting(context, scheduler)),
    h("section", { "aria-labelledby": "history" },
      h("h2", { id: "history" }, "History", alone ? null : h("span", { class: "beside" }, ` of all ${context.partitions.length} partitions`)),
      h("div", { class: "two plots" },
        plot(apps.map((each) => [ms(each.timestamp), Number(each.totalApplications)]), { title: "Running applications", width: plotWidth(context), kind: "a", now: Date.now() }),
        plot(containers.map((each) => [ms(each.timestamp), Number(each.totalContainers)]), { title: "Allocations", width: plotWidth(context), kind: "b", now: Date.now() }))),
  ];
}

function plotWidth(context) {
  return Math.round(context.width > 760 ? (context.width - 16) / 2 - 26 : context.width - 26);
}

function gauges(context, scheduler) {
  const found = types(scheduler.capacity, scheduler.allocated);
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

function rate(before, after) {
  if (!before || before.rmId !== after.rmId) return null;
  const seconds = (after.takenNs - before.takenNs) / 1e9;
  const made = after.scheduler.tally.allocated - before.scheduler.tally.allocated;
  return seconds > 0 && made > 0 ? `+${number(Math.round(made / seconds))}/s` : null;
}

function decision(before, after) {
  const now = after.scheduler.tally;
  const then = before && before.rmId === after.rmId ? before.scheduler.tally : null;
  // Counts since the last look if there were decisions, else since the start.
  const since = then && now.decisions > then.decisions ? then : { decisions: 0, decidingUs: 0 };
  const made = now.decisions - since.decisions;
  return made > 0 ? duration((now.decidingUs - since.decidingUs) / made / 1000) : "–";
}

