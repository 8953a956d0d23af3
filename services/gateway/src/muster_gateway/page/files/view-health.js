// Muster's own health: its parts, checks of the state, processes and registered RMs.

import { button } from "./actions.js";
import { ApiError } from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, count, duration, grouped } from "./format.js";
import { chip, figure } from "./parts.js";
import { hash } from "./route.js";
import { checksOfState, table, word } from "./system-health.js";
import { standing } from "./words.js";

export const title = "Health";
export const every_ms = 5000;
// This view needs no resource manager.
export const alone = true;

export async function load(context) {
  const known = context.managers.some((each) => each.rmID === context.rm);
  const [checks, managers, snapshot] = await Promise.all([
    ifThere(context.get(["scheduler", "healthcheck"], { rm: "" })),
    ifThere(context.get(["resource-managers"], { rm: "" })),
    known ? ifThere(context.get(["metrics", "snapshot"], { sections: "scheduler,runtime", partition: context.partition })) : null,
  ]);
  return { checks, managers, snapshot };
}

/** The view's answer; null if the view is away: the parts of Muster are shown without it. */
async function ifThere(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof ApiError && error.away && error.status !== 0) return null;
    throw error;
  }
}

export function render(context, { checks, managers, snapshot }) {
  const { health } = context;
  return [
    h("h1", {}, "Health"),
    h("section", { class: "card", key: "parts", "aria-labelledby": "parts" },
      h("div", { class: "head" }, h("h2", { id: "parts" }, "Parts"), health.grade ? chip(word(health.grade)) : null),
      table(health) ?? h("p", { class: "empty" }, "The state of the parts is not known, or you have no right to read it.")),
    checks ? checked(checksOfState(checks, health)) : null,
    managers ? registered(context, managers) : null,
    snapshot ? processes(snapshot, health) : null,
  ];
}

function checked(checks) {
  const failed = checks.filter((each) => !each.Succeeded);
  return h("section", { class: "card", key: "checks", "aria-labelledby": "checks" },
      h("div", { class: "head" }, h("h2", { id: "checks" }, "Checks of the state"), chip(!failed.length ? "Healthy" : `${failed.length} failed`)),
      h("table", { class: "list checks" }, h("caption", { class: "sr" }, "Health checks"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Check"), h("th", { scope: "col" }, "Passed"), h("th", { scope: "col" }, "Found"))),
        h("tbody", {}, checks.map((each, at) => h("tr", { key: at },
          h("th", { scope: "row" }, each.Description, h("span", { class: "note" }, each.Name), each.Succeeded ? null : h("span", { class: "slim trouble" }, each.DiagnosisMessage)),
          h("td", {}, each.Succeeded ? h("span", { class: "yes" }, "✓ yes") : h("span", { class: "no" }, "✗ no")),
          h("td", {}, each.DiagnosisMessage))))));
}

function registered(context, managers) {
  return h("section", { class: "card", key: "rms", "aria-labelledby": "rms" },
      h("h2", { id: "rms" }, "Resource managers"),
      managers.length
        ? h("table", { class: "list" }, h("caption", { class: "sr" }, "Registered resource managers"),
            h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Resource manager"), h("th", { scope: "col" }, "State"), h("th", { scope: "col", class: "medium" }, "Callbacks"), h("th", { scope: "col", class: "num medium" }, "Registrations"), h("th", { scope: "col", class: "num" }, "Registered"))),
            h("tbody", {}, managers.map((each) => h("tr", { key: each.rmID },
              h("th", { scope: "row" }, h("a", { href: hash("overview", "", { rm: each.rmID }) }, each.rmID), h("span", { class: "note" }, [each.version, each.policyGroup].filter(Boolean).join(" · "))),
              h("td", {}, chip(each.life.charAt(0) + each.life.slice(1).toLowerCase()), standing(each) ? h("span", { class: "note" }, each.description) : null),
              h("td", { class: "medium" }, each.callbacksConnected ? each.callbacks.join(", ") || "connected" : h("span", { class: "faint" }, "not connected")),
              h("td", { class: "num medium" }, grouped(each.registrations)), h("td", { class: "num" }, ago(each.registered))))))
        : h("p", { class: "empty" }, "No resource manager is registered."),
      actions(context, managers));
}

/** Pause, resume and forget, of the shown RM, for an operator of it. */
function actions(context, managers) {
  const { rm } = context;
  const manager = managers.find((each) => each.rmID === rm);
  if (!manager) return null;
  const found = [
    manager.life === "STOPPED"
      ? button(context, "forget", { label: `Forget ${rm}`, title: `Forget ${rm}?`, verb: "Forget", says: "Muster forgets its nodes, applications and allocations. This cannot be undone. The RM may register again." })
      : manager.held
        ? button(context, "resume", { label: `Resume ${rm}`, title: `Resume ${rm}?`, verb: "Resume", says: "Muster decides for it again." })
        : button(context, "pause", { label: `Pause ${rm}`, title: `Pause ${rm}?`, verb: "Pause", reason: true, says: "Muster takes its requests, and allocates nothing to it, until somebody resumes it." }),
  ].filter(Boolean);
  return found.length ? h("div", { class: "choice" }, found) : null;
}

function processes({ runtime, scheduler: { tally } }, health) {
  return h("section", { class: "card", key: "process", "aria-labelledby": "process" },
    h("h2", { id: "process" }, "Process and counts"),
    h("dl", { class: "figures" },
      runtime.processes.map((each) => [figure(`Memory of ${each.name}`, bytes(each.memoryBytes), `${each.host}, pid ${each.pid}`), figure("Up", duration(each.uptimeSeconds * 1000)), figure("CPU time", duration(each.cpuSeconds * 1000))]),
      runtime.viewLagRecords ? figure("Figures", `${count(runtime.viewLagRecords, "record")} behind`) : health.ok ? figure("Figures", "up to date") : null,
      figure("Allocated so far", grouped(tally.allocated)), figure("Released", grouped(tally.released)), figure("Preempted", grouped(tally.preempted)),
      figure("Timed out", grouped(tally.timedOut)), figure("Replaced", grouped(tally.replaced)), figure("Applications rejected", grouped(tally.applicationsRejected)), figure("Asks rejected", grouped(tally.asksRejected)), figure("Events", grouped(tally.events))));
}
