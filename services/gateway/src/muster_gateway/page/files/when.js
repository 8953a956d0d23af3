// When will it run? A button beside an ask, and the estimate once it was pressed.

import { ApiError } from "./api.js";
import { h } from "./dom.js";

const AGAIN_MS = 1000;
const MAKING = "MAKING";

/** The button, or the estimate, of a pending ask. The estimate stays as long as the view is shown. */
export function when(context, ask) {
  const known = (context.memory.when ??= new Map());
  const key = `${ask.applicationID}\n${ask.allocationKey}`;
  const told = known.get(key);
  const button = h("button", { type: "button", "aria-label": `When will it run? ${ask.allocationKey}`, disabled: told?.busy, on: { click: () => find(context, ask, known, key) } }, "When will it run?");
  return h("p", { class: "note when", key: "when" }, button, told?.text ? h("span", { role: "status" }, " ", told.text) : null);
}

async function find(context, ask, known, key) {
  const put = (told) => {
    known.set(key, told);
    context.redraw();
  };
  put({ busy: true, text: "Simulating …" });
  try {
    for (;;) {
      const found = await context.get(["explain", "when", ask.applicationID, ask.allocationKey], { partition: context.partition });
      if (found.state !== MAKING) return put({ busy: false, text: found.message });
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      if (context.signal.aborted) return undefined;
    }
  } catch (error) {
    if (context.signal.aborted) return undefined;
    if (!(error instanceof ApiError)) throw error;
    return put({ busy: false, text: error.status === 404 ? "It is not pending any more." : error.message });
  }
}
