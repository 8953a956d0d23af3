// The queue configuration as it was written: the checker's problems at their places, what it would change, and its replacement.

import { confirm } from "./actions.js";
import { ApiError, post, url } from "./api.js";
import { h } from "./dom.js";
import { count, grouped } from "./format.js";

export const title = "Configuration";
export const every_ms = 10_000;

const MASK = "***"; // in the place of a secret
const LINE_PX = 20; // as in style.css
const [ROWS_MIN, ROWS_MAX] = [14, 34];
const CHANGES_SHOWN = 200;

// Edited texts, by RM: {text, base: the text in force when the editing began, verdict, trouble, busy, applied}. They stay
// while the reader looks at other views.
const drafts = new Map();
window.addEventListener("beforeunload", (event) => {
  if ([...drafts.values()].some((each) => !each.applied && each.text !== each.base)) event.preventDefault();
});

export async function load(context) {
  const { config } = await context.get(["resource-manager", "configuration"]);
  const draft = drafts.get(context.rm);
  if (draft?.applied && config !== draft.base) drafts.delete(context.rm);
  return { config };
}

export function render(context, { config }) {
  const may = !!context.me?.mayConfigure;
  const draft = drafts.get(context.rm);
  const text = draft?.text ?? config;
  const masked = config.split(MASK).length - 1;
  return [
    h("h1", {}, "Configuration"),
    h("p", { class: "prose" }, config.trim() ? `The queue configuration in force for ${context.rm}, as it was written.` : `${context.rm} registered without a queue configuration: Muster's default is in force.`,
      may ? "" : " You may read it; replacing it needs the right configure."),
    may && masked ? h("p", { class: "more" }, `${count(masked, "secret")} masked with ${MASK}: put the true text there before you check or apply.`) : null,
    draft && !draft.applied && draft.base !== config ? h("p", { class: "more", role: "status" }, "Another configuration came into force since you began. A check compares with that one.") : null,
    h("div", { class: "editing" },
      h("div", { class: "writing" }, editor(context, text, draft, config, may), may ? buttons(context, text, draft, config) : null),
      may ? verdict(context, draft, text) : null),
  ];
}

function editor(context, text, draft, config, may) {
  const lines = text.split("\n").length;
  const input = (event) => {
    drafts.set(context.rm, { base: config, ...drafts.get(context.rm), text: event.target.value, applied: false });
    context.redraw();
  };
  const scroll = (event) => { event.target.previousSibling.scrollTop = event.target.scrollTop; };
  return h("div", { class: "editor" },
    h("pre", { class: "gutter", "aria-hidden": "true" }, numbers(lines, marks(draft, text))),
    h("textarea", { name: "configuration", "aria-label": "Queue configuration (YAML)", "aria-describedby": may ? "verdict" : null, "aria-invalid": draft?.verdict?.accepted === false ? "true" : null,
      rows: Math.min(ROWS_MAX, Math.max(ROWS_MIN, lines + 1)), wrap: "off", spellcheck: "false", autocomplete: "off", autocapitalize: "off", readonly: !may, value: text, on: { input, scroll } }));
}

/** The worst severity by line, of a verdict about just this text. */
function marks(draft, text) {
  const found = new Map();
  if (draft?.verdict?.of !== text) return found;
  for (const { line, severity } of draft.verdict.problems) if (line && found.get(line) !== "error") found.set(line, severity);
  return found;
}

/** The lines' numbers, one text between two marked lines. */
function numbers(lines, marked) {
  const found = [];
  let plain = "";
  for (let line = 1; line <= lines; line += 1) {
    if (!marked.has(line)) plain += `${line}\n`;
    else {
      found.push(plain, h("b", { class: marked.get(line) }, String(line)), "\n");
      plain = "";
    }
  }
  return [...found, plain];
}

function buttons(context, text, draft, config) {
  const idle = !draft?.busy && text.trim() !== "";
  return h("div", { class: "choice" },
    h("button", { type: "button", disabled: !idle, on: { click: () => check(context, text, config) } }, draft?.busy ? "Checking …" : "Check"),
    h("button", { type: "button", class: "danger", disabled: !idle || text === config, on: { click: () => apply(context, text, config) } }, "Apply …"),
    draft && text !== config ? h("button", { type: "button", class: "quiet", on: { click: () => { drafts.delete(context.rm); context.redraw(); } } }, "Discard my changes") : null);
}

/** The scheduler's verdict on the text, which changes nothing; null: none came. */
async function check(context, text, config) {
  const draft = { base: config, ...drafts.get(context.rm), text, busy: true, trouble: "" };
  drafts.set(context.rm, draft);
  context.redraw();
  const found = {};
  try {
    found.verdict = { ...(await post(url(["ws", "v1", "operate", "validate"], { rm: context.rm }), text)), of: text };
    found.verdict.problems.sort((a, b) => !a.line - !b.line || a.line - b.line || a.column - b.column);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    found.trouble = error.message;
  }
  const now = drafts.get(context.rm); // it may have been edited or discarded meanwhile
  if (now) drafts.set(context.rm, { ...now, ...found, busy: false });
  context.redraw();
  return found.verdict ?? null;
}

/** Asks with the changes, and applies the text after a confirmation. */
async function apply(context, text, config) {
  const found = await check(context, text, config);
  if (!found?.accepted || context.signal.aborted) return;
  const rm = context.rm;
  confirm(context, "configure", {
    title: `Apply this configuration to ${rm}?`, verb: "Apply", body: text,
    says: found.changes.length ? `It takes effect as a whole: ${count(found.changes.length, "change")}.` : "Only the text differs: comments or the order of keys.",
    more: found.changes.length ? changes(found.changes) : null,
    told(answer) {
      if (!answer.accepted) throw new ApiError(409, `Refused: ${answer.problems.find((each) => each.severity === "error")?.message ?? "see Check"}`);
      const draft = drafts.get(rm);
      if (draft) Object.assign(draft, { applied: true, verdict: null });
      return `It is in force: ${count(answer.changes.length, "change")}.`;
    },
  });
}

function changes(lines) {
  return h("ul", { class: "changes code" }, lines.slice(0, CHANGES_SHOWN).map((each) => h("li", {}, each)),
    lines.length > CHANGES_SHOWN ? h("li", {}, `and ${grouped(lines.length - CHANGES_SHOWN)} more`) : null);
}

function verdict(context, draft, text) {
  const found = draft?.verdict;
  const old = found && found.of !== text;
  return h("section", { class: "card", id: "verdict", "aria-labelledby": "verdicthead" },
    h("h2", { id: "verdicthead" }, "Check", old ? h("span", { class: "beside" }, " of the text before your last change") : null),
    h("div", { role: "status" }, draft?.trouble ? h("p", { class: "trouble" }, draft.trouble)
      : !found ? h("p", { class: "empty" }, "A check finds errors with their places, and says what the text would change. It changes nothing.")
        : h("p", { class: found.accepted ? "yes" : "no" }, found.accepted ? "✓ It would be accepted." : "✗ It would be refused.")),
    found?.problems.length ? h("ol", { class: "problems" }, found.problems.map((each) => problem(each))) : null,
    found?.accepted ? (found.changes.length ? [h("h2", {}, "It would change"), changes(found.changes)] : h("p", { class: "empty" }, "It would change nothing.")) : null);
}

function problem({ severity, path, line, column, message }) {
  return h("li", { class: severity },
    line ? h("button", { type: "button", class: "place", "aria-label": `Go to line ${line}, column ${column}`, on: { click: () => goTo(line, column) } }, `${line}:${column}`) : h("span", { class: "place" }, "–"),
    h("span", {}, h("b", {}, severity), " ", message, path ? h("span", { class: "note code" }, path) : null));
}

/** Puts the cursor at a place of the text. */
function goTo(line, column) {
  const field = document.querySelector(".editor textarea");
  const begin = field.value.split("\n").slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  const at = Math.min(begin + column - 1, field.value.length);
  field.focus();
  field.setSelectionRange(at, Math.min(at + 1, field.value.length));
  field.scrollTop = (line - 6) * LINE_PX;
}
