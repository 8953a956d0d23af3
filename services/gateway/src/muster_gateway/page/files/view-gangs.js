// Gangs that form or hold placeholders, and preemption: who had to go, for whom, and why.

import { h } from "./dom.js";
import { ago, clock, count, duration, grouped, moment, ms, resource } from "./format.js";
import { chip } from "./parts.js";

export const title = "Gangs, preemption";
export const every_ms = 2000;

// Each costs a request.
const GANGS_SHOWN = 12;
const TOGETHER_NS = 10e9;

export async function load(context) {
  const [apps, preemption] = await Promise.all([
    context.get(["partition", context.partition, "applications", "active"]),
    context.get(["explain", "preempted"]),
  ]);
  // The answer has thousands of allocations; few applications have placeholders.
  const forming = apps.filter(hasPlaceholders).sort((a, b) => b.submissionTime - a.submissionTime);
  const shown = forming.slice(0, GANGS_SHOWN);
  const whys = await Promise.all(shown.map((app) => context.find(["explain", "application", app.applicationID], { partition: context.partition })));
  const here = (each) => each.partition === context.partition;
  return {
    gangs: shown.map((app, at) => ({ app: { applicationID: app.applicationID, queueName: app.queueName, user: app.user, since: since(app) }, why: whys[at] })).filter(({ why }) => why?.gang),
    more: forming.length - shown.length,
    going: preemption.preempted.filter(here), ended: preemption.ended.filter(here).reverse(),
  };
}

function hasPlaceholders(app) {
  return (app.placeholderData ?? []).length > 0 && ((app.allocations ?? []).some((each) => each.placeholder) || (app.requests ?? []).some((each) => each.placeholder));
}

/** When the first placeholder that is still there was asked for, in ns; 0: not known. */
export function since(app) {
  const found = [...(app.allocations ?? []), ...(app.requests ?? [])].filter((each) => each.placeholder).map((each) => each.requestTime).filter(Boolean);
  return found.length ? Math.min(...found) : 0;
}

export function render(context, { gangs, more, going, ended }) {
  return [
    h("h1", {}, "Gangs and preemption"),
    h("section", { "aria-labelledby": "forming" },
      h("h2", { id: "forming" }, "Gangs with placeholders", h("span", { class: "beside" }, ` ${grouped(gangs.length + more)}`)),
      gangs.length ? h("div", { class: "gangs" }, gangs.map(({ app, why }) => h("article", { class: "card", key: app.applicationID, "aria-label": `Gang of ${app.applicationID}` },
        h("div", { class: "head" }, h("h3", {}, h("a", { href: context.link("applications", app.applicationID) }, app.applicationID)),
          h("span", { class: "note" }, h("a", { class: "plainlink", href: context.link("queues", app.queueName) }, app.queueName), app.user ? ` · ${app.user}` : "")),
        progress(why.gang, app.since)))) : h("p", { class: "empty" }, "No gang has placeholders now."),
      more > 0 ? h("p", { class: "note" }, `and ${grouped(more)} more applications`) : null),
    h("section", { class: "card", "aria-labelledby": "going" },
      h("h2", { id: "going" }, "Being preempted", h("span", { class: "beside" }, ` ${grouped(going.length)}`)),
      going.length ? victims(context, going, "Allocations that are being preempted") : h("p", { class: "empty" }, "No allocation is being preempted now.")),
    h("section", { class: "card", "aria-labelledby": "ended" },
      h("h2", { id: "ended" }, "Preempted before", h("span", { class: "beside" }, ` ${grouped(ended.length)} since the view started`)),
      ended.length ? victims(context, ended, "Allocations that were preempted and have ended") : h("p", { class: "empty" }, "None.")),
  ];
}

/** A gang's placeholders by task group, since when it forms, and its time-out. */
export function progress(gang, sinceNs) {
  const now = Date.now();
  const began = sinceNs || (gang.deadline ? gang.deadline - gang.timeout : 0);
  const left = ms(gang.deadline) - now;
  const after = gang.style === "Hard" ? "then unused placeholders end, and without a real allocation the application fails" : "then unused placeholders end, and its asks need no gang any more";
  return [
    h("p", { class: "prose" }, gang.message),
    gang.taskGroups.map((each) => group(each)),
    h("p", { class: "legend", "aria-hidden": "true" }, h("span", { class: "key run" }, "replaced"), h("span", { class: "key placed" }, "placed"), h("span", { class: "key wanted" }, "pending"), h("span", { class: "key bad" }, "timed out or lost")),
    h("p", { class: "note" }, [
      began ? `Since ${clock(ms(began))} (${ago(began, now)})` : "",
      gang.deadline ? `time-out ${left > 0 ? `in ${duration(Math.ceil(left / 1000) * 1000)}` : "is due"} (${clock(ms(gang.deadline))}), ${after}` : `no time-out runs${gang.timeout ? `: it begins with the first placeholder, for ${duration(ms(gang.timeout))}` : ""}`,
      `style ${gang.style}`,
    ].filter(Boolean).join(" · ")),
  ];
}

function group(each) {
  const placed = each.held - each.leaving;
  const parts = [["run", each.replaced, "replaced"], ["placed", placed, "placed"], ["leaving", each.leaving, "being replaced or released"], ["wanted", each.pending, "pending"], ["bad", each.timedOut, "timed out"], ["bad", each.lost, "lost"]].filter(([, value]) => value > 0);
  const said = `${grouped(placed + each.leaving + each.replaced)} of ${grouped(each.asked)} placed${each.replaced ? `, ${grouped(each.replaced)} of them replaced` : ""}`;
  return h("div", { class: "use", key: each.taskGroup },
    h("span", { class: "what" }, h("span", {}, h("b", {}, each.taskGroup || "placeholders"), h("span", { class: "type" }, ` ${resource(each.resource)} each`)), h("span", {}, said)),
    h("span", { class: "stack", role: "img", "aria-label": `${each.taskGroup}: ${parts.map(([, value, word]) => `${value} ${word}`).join(", ")} of ${each.asked}` },
      parts.map(([kind, value, word]) => h("span", { class: kind, key: word, style: { "flex-grow": value } }))),
    h("span", { class: "note" }, parts.map(([, value, word]) => `${grouped(value)} ${word}`).join(" · ")),
    each.because ? h("span", { class: "note" }, each.because.message) : null);
}

/** Allocations of one application that went for the same other one, by the same rule, at about the same time. */
function together(list) {
  const found = new Map();
  for (const each of list) {
    const key = [each.applicationID, each.forApplicationID, each.forQueue, each.rule, Math.floor(each.since / TOGETHER_NS)].join("\n");
    if (found.has(key)) found.get(key).push(each);
    else found.set(key, [each]);
  }
  return [...found.values()];
}

/** Preempted allocations: who, for whom, why. */
export function victims(context, list, caption) {
  return h("table", { class: "list victims" }, h("caption", { class: "sr" }, caption),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Who"), h("th", { scope: "col" }, "For whom"), h("th", { scope: "col" }, "Why"), h("th", { scope: "col", class: "num" }, "When"))),
    h("tbody", {}, together(list).map(([each, ...others]) => h("tr", { key: `${each.applicationID} ${each.allocationKey} ${each.since}` },
      h("th", { scope: "row" }, h("a", { href: context.link("applications", each.applicationID) }, each.applicationID), h("span", { class: "note" }, `${each.allocationKey} on ${each.node} · ${resource(each.resource)}`), others.length ? h("details", {}, h("summary", {}, `and ${grouped(others.length)} more`), h("ul", { class: "plain" }, others.map((one) => h("li", {}, `${one.allocationKey} on ${one.node}`)))) : null, each.withGang ? chip("With its gang") : null),
      h("td", {}, each.forApplicationID ? h("a", { href: context.link("applications", each.forApplicationID) }, each.forApplicationID) : each.forQueue ? h("a", { href: context.link("queues", each.forQueue) }, each.forQueue) : "–", each.forAllocationKey ? h("span", { class: "note" }, each.forAllocationKey, each.forQueue ? ` in ${each.forQueue}` : "") : null),
      h("td", {}, each.message),
      h("td", { class: "num" }, h("time", { title: moment(each.since) }, ago(each.since)))))));
}

/** What an application loses to others, and what others lose to it. */
export function ofApplication(context, why) {
  const lost = why?.preempted ?? [];
  const made = (why?.asks ?? []).flatMap((each) => each.preemption.victims.map((victim) => ({ ...victim, ask: each.allocationKey })));
  if (!lost.length && !made.length) return null;
  return h("section", { class: "card", "aria-labelledby": "preemption" },
    h("h2", { id: "preemption" }, "Preemption"),
    lost.length ? victims(context, lost, "Its allocations that are being preempted") : null,
    made.length ? h("p", { class: "prose" }, `${count(made.length, "allocation")} must end for it:`) : null,
    made.length ? h("ul", { class: "plain" }, made.map((each) => h("li", { key: `${each.applicationID} ${each.allocationKey}` }, h("a", { href: context.link("applications", each.applicationID) }, each.applicationID), ` ${each.allocationKey} on ${each.node}, for ${each.ask}, since ${ago(each.since)}`))) : null);
}
