// What ended, from the history: /ws/v1/ended (docs/ended.md).

import { ApiError } from "./api.js";
import { h } from "./dom.js";
import { duration, grouped, moment, ms } from "./format.js";
import { chip, quantities } from "./parts.js";

const ROWS = 200;

/** One answer: {ended, next, note, failed}. Where the history does not answer, `note` says so. */
async function answer(context, query) {
  try {
    return { failed: false, ...((await context.find(["ended"], query)) ?? { ended: [], next: "", note: "" }) };
  } catch (error) {
    if (error instanceof ApiError && !context.signal.aborted) return { failed: true, ended: [], next: "", note: `The history cannot be read now: ${error.message}` };
    throw error;
  }
}

/** The last life of an object that is not there: {life, note, next}. Each call looks further back, until it is there. */
export async function lastLife(context, kind, events = false) {
  let gone = context.memory.gone;
  if (gone?.of !== context.thing) gone = context.memory.gone = { of: context.thing, life: null, next: "", note: "", over: false };
  if (gone.over) return gone;
  const found = await answer(context, { kind, name: context.thing, count: 1, before: gone.next, events });
  Object.assign(gone, { life: found.ended[0] ?? null, note: found.note, next: found.failed ? gone.next : found.next });
  gone.over = gone.life !== null || (!gone.next && !found.failed);
  return gone;
}

/** The lives with a text in their names, the newest first: {ended, next, note}. */
export function lives(context, kind, { q = "", count = 100, before = "" } = {}) {
  return answer(context, { kind, q, count, before });
}

/** What is said of an object that is neither there nor in the history. */
export function absence(gone, what) {
  if (gone?.note) return [`This ${what} does not exist here. `, gone.note];
  if (gone?.next) return `This ${what} does not exist here. Looking for it in the history, back to ${moment(Number(gone.next.split("-")[0]))} so far …`;
  return `This ${what} does not exist, and the history has none of this name.`;
}

/** A life as an application of REST, for the view of one. */
export function asApplication(life) {
  const stateLog = (life.stateLog ?? []).map((each) => ({ time: each.time, applicationState: each.state }));
  if (life.end && stateLog.at(-1)?.applicationState !== life.state) stateLog.push({ time: life.end, applicationState: life.state });
  return {
    applicationID: life.name, applicationState: life.state, queueName: life.queueName ?? "", user: life.user ?? "",
    submissionTime: life.begin, finishedTime: life.end, stateLog, rejectedMessage: life.state === "Rejected" ? life.message ?? "" : "",
  };
}

/** The sentence that it is from the history, and its events in the terminal. */
export function fromHistory(life) {
  return h("p", { class: "prose", role: "note" }, h("b", {}, "From the history. "), life.sentence, life.message && !life.sentence.includes(life.message) ? ` Its last message: ${life.message}` : "");
}

/** The past allocations of an application or node. */
export function pastAllocations(context, life, what) {
  const log = life.allocationLog ?? [];
  if (!log.length) return null;
  return h("section", { class: "card", "aria-labelledby": "past" },
    h("h2", { id: "past" }, "Allocations", h("span", { class: "beside" }, ` ${grouped(log.length)}, from the history`)),
    h("table", { class: "list" }, h("caption", { class: "sr" }, `Past allocations of the ${what}`),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Key"), h("th", { scope: "col" }, "Node"), h("th", { scope: "col", class: "medium" }, "Takes"), h("th", { scope: "col" }, "From"), h("th", { scope: "col", class: "num" }, "For"), h("th", { scope: "col" }, "Ended"))),
      h("tbody", {}, log.slice(0, ROWS).map((each, at) => h("tr", { key: `${each.allocationKey} ${at}` },
        h("th", { scope: "row" }, each.allocationKey),
        h("td", {}, each.nodeID ? h("a", { class: "plainlink", href: context.link("nodes", each.nodeID) }, each.nodeID) : "–"),
        h("td", { class: "medium" }, quantities(each.resource)),
        h("td", {}, each.begin ? moment(each.begin) : "–"),
        h("td", { class: "num" }, each.begin && each.end ? duration(ms(each.end - each.begin)) : "–"),
        h("td", {}, each.ended || "–", each.message ? h("span", { class: "note" }, each.message) : null))))),
    log.length > ROWS ? h("p", { class: "note" }, `and ${grouped(log.length - ROWS)} more`) : null);
}

/** A node or queue that was removed, as a card. */
export function removed(context, what, life, close) {
  const facts = [["Was there from", life.begin ? moment(life.begin) : "–"], ["Until", life.end ? moment(life.end) : "–"]];
  return [
    h("section", { class: "card detail", "aria-label": `${what} ${life.name}` },
      h("div", { class: "head" }, h("h2", {}, life.name), chip(life.state), close),
      fromHistory(life),
      h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
        [h("dt", {}, what === "Node" ? "Capacity" : "Max"), h("dd", {}, quantities(life.resource))])),
    pastAllocations(context, life, what.toLowerCase()),
  ];
}
