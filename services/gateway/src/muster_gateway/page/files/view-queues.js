// The tree of queues: the usage of each against its guarantee and max; and one queue, with its state in words. Resource
// managers of one policy group have one tree: the usage of a queue in each of them.

import { ApiError, queuePart } from "./api.js";
import { h } from "./dom.js";
import { absence, lastLife, removed } from "./ended.js";
import { amount, count, duration, grouped, ms } from "./format.js";
import { absent, chip, figure, quantities } from "./parts.js";
import { hash } from "./route.js";
import { grown, rows, uses } from "./tree.js";
import { reason } from "./words.js";

export const title = "Queues";
export const every_ms = 2000;

export async function load(context) {
  const [snapshot, members, single, position] = await Promise.all([
    context.get(["metrics", "snapshot"], { sections: "queues", partition: context.partition }),
    group(context),
    context.thing ? context.find(["partition", context.partition, "queue", queuePart(context.thing)]) : null,
    context.thing ? context.find(["explain", "queue", queuePart(context.thing)], { partition: context.partition }) : null,
  ]);
  const [elsewhere, gone] = context.thing && !position ? await Promise.all([context.elsewhere("queue", queuePart(context.thing)), lastLife(context, "queue")]) : [[], null];
  return { queues: snapshot.queues, members, single, position, elsewhere, gone };
}

/** The other resource managers of the shown one's policy group that the reader may see, with their queues. */
async function group(context) {
  const name = managerOf(context)?.policyGroup;
  const others = context.managers.filter((each) => name && each.policyGroup === name && each.rmID !== context.rm);
  const found = await Promise.all(others.map(async ({ rmID }) => {
    try {
      const { queues } = await context.get(["metrics", "snapshot"], { sections: "queues", partition: context.partition, rm: rmID });
      return { rmID, queues };
    } catch (error) {
      if (error instanceof ApiError && (error.status === 403 || error.status === 404)) return null;
      throw error;
    }
  }));
  return found.filter(Boolean);
}

function managerOf(context) {
  return context.managers.find((each) => each.rmID === context.rm);
}

export function render(context, { queues, members, single, position, elsewhere, gone }) {
  const tree = grown(queues);
  return [
    h("h1", {}, "Queues"),
    context.thing ? detail(context, queues, single, position, elsewhere, gone) : null,
    shared(context, tree, members),
    h("p", { class: "legend", "aria-hidden": "true" },
      h("span", { class: "key used" }, "used"), h("span", { class: "key wanted" }, "pending"), h("span", { class: "key mark" }, "guaranteed")),
    h("table", { class: "tree" },
      h("caption", { class: "sr" }, "Queues with the used part of their max"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Queue"), h("th", { scope: "col", class: "num" }, "Applications"), h("th", { scope: "col" }, "Used of the max"))),
      h("tbody", {}, rows(context, tree, { chosen: context.thing, cells }))),
  ];
}

/** The chosen queue, or the root, in each resource manager of the group. */
function shared(context, tree, members) {
  const path = context.thing || "root";
  const mine = { rmID: context.rm, node: tree.get(path) };
  const others = members.map(({ rmID, queues }) => ({ rmID, node: grown(queues).get(path) }));
  const found = [mine, ...others].filter((each) => each.node).sort((a, b) => (a.rmID < b.rmID ? -1 : 1));
  if (!mine.node || found.length < 2) return null;
  return h("section", { class: "card", "aria-labelledby": "group" },
    h("h2", { id: "group" }, `${path} in the policy group ${managerOf(context).policyGroup}`),
    h("table", { class: "tree" },
      h("caption", { class: "sr" }, `${path} in each resource manager`),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Resource manager"), h("th", { scope: "col", class: "num" }, "Applications"), h("th", { scope: "col" }, "Used of the max"))),
      h("tbody", {}, found.map(({ rmID, node }) => h("tr", { key: rmID, class: rmID === context.rm ? "chosen" : null },
        h("th", { scope: "row" }, h("a", { href: hash("queues", context.thing, { rm: rmID, partition: context.params.partition }) }, rmID)),
        cells(node))))),
    h("p", { class: "prose" }, "Limits and guarantees hold in each resource manager, not in their sum."));
}

function cells(node) {
  return [
    h("td", { class: "num" }, grouped(node.applications), h("span", { class: "unit" }, node.applications === 1 ? " app" : " apps"), node.applicationsMax ? h("span", { class: "note" }, `${grouped(node.applicationsRunning)} of ${grouped(node.applicationsMax)} run`) : null),
    h("td", {}, uses(node)),
  ];
}

function detail(context, queues, single, position, elsewhere, gone) {
  const figures = queues.find((each) => each.path === context.thing);
  const close = h("a", { class: "away", href: context.link("queues"), "aria-label": "Close this queue" }, "Close");
  if (!position && gone?.life && !elsewhere.length) return removed(context, "Queue", gone.life, close);
  if (!position || !figures) return h("section", { class: "card detail" }, h("h2", {}, context.thing), absent(context, "queues", absence(gone, "queue"), elsewhere));
  const asks = Object.entries(position.asks).sort((a, b) => b[1] - a[1]);
  const properties = Object.entries(single?.properties ?? {});
  return h("section", { class: "card detail", "aria-label": `Queue ${context.thing}` },
    h("div", { class: "head" }, h("h2", {}, context.thing), chip(position.state), close),
    h("p", { class: "prose" }, position.message),
    h("dl", { class: "figures" },
      figure("Applications", grouped(figures.applications), figures.applicationsMax ? `${grouped(figures.applicationsRunning)} of ${grouped(figures.applicationsMax)} run` : null),
      figure("Fullest type", `${Math.round(position.share * 100)}%`, "of its guarantee, else of its max"),
      figure("Order", single?.sortingPolicy ?? "–", position.leaf ? "of applications" : "of queues"),
      position.maxApplications ? figure("Forming gangs", grouped(position.formingApplications)) : null,
      position.preemptionDelay ? figure("Preemption", `after ${duration(ms(position.preemptionDelay))}`) : null),
    h("dl", { class: "facts" },
      fact("Used", quantities(position.allocated)), fact("Pending", quantities(position.pending)), fact("Max of its own", quantities(position.maximum)),
      fact("Headroom", quantities(position.headroom)),
      fact("Guaranteed", position.guarantees.length ? h("ul", { class: "plain" }, position.guarantees.map((each) => h("li", {}, `${amount(each.resourceType, each.guaranteed)} at ${each.queue}`, each.missing > 0 ? h("span", { class: "more" }, `, ${amount(each.resourceType, each.missing)} missing`) : ", met"))) : h("span", { class: "faint" }, "none")),
      asks.length ? fact("Pending asks", h("ul", { class: "plain" }, asks.map(([code, many]) => h("li", {}, h("a", { href: context.link("pending", "", { reason: code, queue: context.thing }) }, reason(code)), ` ${grouped(many)}`)))) : null,
      properties.length ? fact("Properties", h("ul", { class: "plain code" }, properties.map(([name, value]) => h("li", {}, `${name}: ${value}`)))) : null),
    h("p", {}, h("a", { class: "go", href: context.link("applications", "", { queue: context.thing }) }, `Show its ${count(figures.applications, "application")}`)));
}

function fact(name, value) {
  return [h("dt", {}, name), h("dd", {}, value)];
}
