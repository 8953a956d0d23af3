// What an operator may do here: each action asks first, and says how the audit trail has it.

import { ApiError, json, post, url } from "./api.js";
import { h } from "./dom.js";

// The audit entry is written with the action. The view of the trail may be a moment behind it.
const AUDIT_TRIES = 120;
const AUDIT_WAIT_MS = 500;
// The clocks of browser and server may differ by this much; the newest entry that fits counts.
const CLOCKS_MS = 15 * 60_000;

/**
 * A button that asks before it acts; null if the reader may not operate the shown RM.
 * @param action pause, resume, drain, undrain, forget or end-application
 * @param what about: {label}, and as for confirm()
 */
export function button(context, action, what) {
  if (!context.me?.mayOperate) return null;
  return h("button", { type: "button", key: action, on: { click: () => confirm(context, action, what) } }, what.label);
}

/**
 * Asks, acts, and shows the result with its audit line.
 * @param about {title, says, verb, query, reason: whether a reason is asked for, body: of the request, more: an element
 * after `says`, told: makes the result's text of the answer, or throws an ApiError if nothing was done}
 */
export function confirm(context, action, { title, says, verb, query = {}, reason = false, body, more = null, told = done }) {
  const rm = context.rm;
  const said = h("p", { class: "trouble", role: "alert" });
  const act = h("button", { type: "submit", class: "danger" }, verb);
  const form = h("form", { on: { submit: (event) => { event.preventDefault(); run(); } } },
    h("h2", { id: "asked" }, title), h("p", {}, says), more,
    reason ? h("label", { class: "field" }, h("span", { class: "label" }, "Reason, for people"), h("input", { name: "reason", maxlength: 256, autocomplete: "off" })) : null,
    h("p", { class: "note" }, `The audit trail names ${context.me.identity} for it.`), said,
    h("div", { class: "choice" }, act, h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel")));
  const dialog = h("dialog", { "aria-labelledby": "asked" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();

  async function run() {
    act.disabled = true;
    said.textContent = "";
    try {
      const began = Date.now();
      const before = context.me.role === "admin" ? await newest(context, action, rm, began) : null;
      const answer = await post(url(["ws", "v1", "operate", action], { rm, ...query, reason: reason ? form.elements.reason.value.trim() : "" }), body);
      const result = told(answer);
      const trail = h("p", { class: "note" }, "The audit trail has it; the role admin reads it.");
      form.replaceChildren(
        h("h2", { id: "asked" }, title), h("p", { role: "status" }, result),
        trail,
        h("div", { class: "choice" }, h("button", { type: "button", autofocus: true, on: { click: () => dialog.close() } }, "Close")));
      form.querySelector("button").focus();
      context.stale();
      if (context.me?.role !== "admin") return;
      trail.textContent = "The audit trail …";
      const line = await entry(context, action, rm, began, before?.id, dialog);
      trail.textContent = line ? `${new Date(line.time / 1e6).toISOString()} ${line.identity} ${line.action} ${line.rmId} ${line.result}` : "The audit trail does not show it yet: muster audit has it later.";
      if (line) trail.className = "code audit";
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      said.textContent = error.message;
      act.disabled = false;
    }
  }
}

function done(answer) {
  return answer.changed ? answer.description || "Done." : `It was so already. ${answer.description}`;
}

/** The newest entry of the trail for such an action of this reader; null: none, or no answer. */
async function newest(context, action, rm, began) {
  const address = url(["ws", "v1", "audit"], { rm, action, identity: context.me.identity, from: ((began - CLOCKS_MS) / 1000).toFixed(3), limit: 1000 });
  try {
    return (await json(address, AbortSignal.timeout(30_000))).data.entries.at(-1) ?? null;
  } catch {
    return null;
  }
}

/** The entry of an action that was just done; null: not found. `before`: the id of the newest entry before it. */
async function entry(context, action, rm, began, before, dialog) {
  for (let tries = 0; tries < AUDIT_TRIES && dialog.open; tries += 1) {
    const found = await newest(context, action, rm, began);
    if (found && found.id !== before) return found;
    await new Promise((resolve) => setTimeout(resolve, AUDIT_WAIT_MS));
  }
  return null;
}
