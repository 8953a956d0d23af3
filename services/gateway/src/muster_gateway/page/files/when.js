// When will it run? A button for the asks of an application that wait for one reason, and the forecast once it was
// pressed: when the first and the last of them start, and what has started meanwhile.

import { ApiError } from "./api.js";
import { h } from "./dom.js";
import { reason } from "./words.js";

const AGAIN_MS = 1000;
const MAKING = "MAKING";

/** The forecasts of a view, by application and reason: they stay as long as it is shown, whatever becomes of the asks. */
function forecasts(context) {
  return (context.memory.when ??= new Map());
}

/**
 * The buttons and forecasts of one application.
 * @param id the application; `asks`: its pending asks, perhaps none
 */
export function when(context, id, asks) {
  const known = forecasts(context);
  const codes = new Set([...asks.map((each) => each.reason), ...[...known.values()].filter((each) => each.id === id).map((each) => each.code)]);
  return [...codes].map((code) => {
    const told = known.get(keyOf(id, code));
    const waits = asks.some((each) => each.reason === code);
    const label = codes.size > 1 ? `When will it run? ${reason(code)}` : "When will it run?";
    return h("p", { class: "note when", key: `when ${code}`, "data-reason": code },
      waits ? h("button", { type: "button", "aria-label": `When will it run? ${id}, ${reason(code)}`, disabled: told?.busy, on: { click: () => find(context, id, code, asks) } }, label) : h("b", {}, reason(code)),
      told ? h("span", { role: "status" }, " ", told.text) : null);
  });
}

/** The applications with a forecast, as {id, queue, since}: a view shows them although their asks have started. */
export function foretold(context) {
  return [...forecasts(context).values()];
}

function keyOf(id, code) {
  return `${id}\n${code}`;
}

async function find(context, id, code, asks) {
  const since = Math.min(...asks.map((each) => each.since || Infinity));
  const put = (busy, text) => {
    forecasts(context).set(keyOf(id, code), { id, code, queue: asks[0].queue, since: Number.isFinite(since) ? since : 0, busy, text });
    context.redraw();
  };
  put(true, "Simulating …");
  // (The first answer says how new the simulated state must be: asks that come later do not delay the forecast.)
  let newest;
  for (;;) {
    try {
      const found = await context.get(["explain", "when", id], { partition: context.partition, reason: code, since: newest });
      if (found.state !== MAKING) return put(false, found.message);
      newest ??= found.since;
    } catch (error) {
      if (context.signal.aborted) return undefined;
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 404) return put(false, "Its asks do not wait any more: the application has ended meanwhile, or was removed.");
      if (!error.away) return put(false, error.message);
      put(true, `Simulating … ${error.message}`);
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    if (context.signal.aborted) return undefined;
  }
}
