// The state of the whole Muster in the header of each view. The gateway computes it; the page adds only that its own way
// to the gateway is gone.

import { ApiError, ask } from "./api.js";
import { h } from "./dom.js";
import { clock, count, duration, ms } from "./format.js";

const ADDRESS = "/ws/v1/health";
const EVERY_MS = 2000;
// Without an answer: a returned gateway is noticed this soon.
const AWAY_EVERY_MS = 3000;
// To spare the server, it rests this many times as long as an answer took.
const REST_TIMES = 10;
const TIMEOUT_MS = 8000;

export const OK = "ok";

/**
 * Asks for the state again and again, unless the page is hidden.
 *
 * `found` is the newest answer (null: there was none yet), `goneAt` when the gateway stopped to answer (null: it answers),
 * `answeredAt` when it last did; both in milliseconds since the epoch.
 */
export class SystemHealth {
  constructor(changed) {
    this.found = null;
    this.goneAt = null;
    this.answeredAt = null;
    this.changed = changed;
    this.woken = null;
  }

  /** Asks as long as the page lives. */
  async follow() {
    for (;;) {
      let rest = EVERY_MS;
      if (!document.hidden) {
        const began = performance.now();
        await this.refresh();
        rest = this.goneAt === null ? Math.max(EVERY_MS, REST_TIMES * (performance.now() - began)) : AWAY_EVERY_MS;
      }
      await new Promise((resolve) => { this.woken = resolve; setTimeout(resolve, Math.min(rest, 10_000)); });
    }
  }

  /** Asks at once. */
  wake() {
    this.woken?.();
  }

  async refresh() {
    const before = this.grade;
    try {
      this.found = await answer();
      this.answered();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 0) this.goneAt ??= Date.now();
      else {
        // It needs a token, or a proxy stands where the gateway was.
        this.found = error.away ? unreachable(error.message) : null;
        this.answered();
      }
    }
    this.changed(before);
  }

  answered() {
    this.goneAt = null;
    this.answeredAt = Date.now();
  }

  /** "ok", "degraded", "failed"; "" if it is not known. */
  get grade() {
    return this.goneAt !== null ? "failed" : this.found?.grade ?? "";
  }

  /** Whether everything works, as far as the page knows. */
  get ok() {
    return this.grade === OK;
  }

  /** The parts that are not well, the worst first. */
  get faults() {
    if (this.goneAt !== null) return [gone(this)];
    if (!this.found || this.ok) return [];
    const parts = this.found.parts.filter((each) => each.grade !== OK);
    // A reader without rights gets the grade alone.
    return parts.length ? parts : [this.found];
  }

  /** Whether this part works, as far as the page knows. */
  works(part) {
    return !this.faults.some((each) => each.part === part);
  }

  /** The time since a moment of the gateway's clock. */
  age(since) {
    if (this.goneAt !== null) return Date.now() - ms(since);
    return ms(this.found.checked - since) + Date.now() - this.answeredAt;
  }
}

async function answer() {
  const ends = AbortSignal.timeout(TIMEOUT_MS);
  try {
    return await (await ask(ADDRESS, ends)).json();
  } catch (error) {
    // (A time-out aborts the request, which is no error of the page.)
    if (error instanceof ApiError) throw error;
    throw new ApiError(0, "The gateway does not answer.");
  }
}

function unreachable(sentence) {
  const now = Date.now() * 1e6;
  return { grade: "failed", part: "gateway", since: now, sentence, remedy: "", checked: now, parts: [] };
}

function gone(health) {
  return { grade: "failed", part: "gateway", since: health.goneAt * 1e6, sentence: "it does not answer this page", remedy: "start it, or repair the connection to it", checked: 0 };
}

/** The grade as a word of the header. */
export function word(grade) {
  return grade.charAt(0).toUpperCase() + grade.slice(1);
}

/** The band below the views' names; null while all is well. */
export function band(health) {
  const [worst, ...others] = health.faults;
  if (!worst) return null;
  const first = said(health, worst);
  return h("section", { class: `whole ${worst.grade}`, key: "whole", "aria-label": "State of Muster" },
    h("div", { class: "inner" },
      others.length
        ? h("details", { key: "several" },
            h("summary", {}, first, h("span", { class: "others" }, `and ${count(others.length, "more part")}`)),
            h("ul", {}, others.map((each) => h("li", { key: each.part }, said(health, each)))))
        : h("p", { key: "one" }, first),
      health.goneAt !== null && health.answeredAt !== null
        ? h("p", { class: "old", key: "old" }, `The figures below are of ${clock(health.answeredAt)}, `, aged(Date.now() - health.answeredAt), " ago.")
        : null));
}

function said(health, { grade, part, since, sentence, remedy }) {
  return [
    h("b", {}, word(grade)), part ? `: ${part}` : "", since ? [", for ", aged(health.age(since))] : null,
    sentence ? `: ${sentence}.` : ".", remedy ? [" ", h("span", { class: "remedy" }, `${word(remedy)}.`)] : null,
  ];
}

/** (Its change each second is nothing to read aloud.) */
function aged(milliseconds) {
  return h("span", { "aria-live": "off", class: "nobreak" }, duration(Math.max(1000, Math.floor(milliseconds / 1000) * 1000)));
}

/** YuniKorn's checks of the recorded state, without those of Muster's parts, which the page shows by themselves. */
export function checksOfState({ HealthChecks }, health) {
  const parts = new Set((health.found?.parts ?? []).map((each) => each.part));
  return HealthChecks.filter((each) => !parts.has(each.Name.toLowerCase()));
}

/** Each part, for the health view. */
export function table(health) {
  const parts = health.goneAt !== null ? health.faults : health.found?.parts ?? [];
  if (!parts.length) return null;
  return h("table", { class: "list checks" }, h("caption", { class: "sr" }, "Parts of Muster"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Part"), h("th", { scope: "col" }, "Grade"), h("th", { scope: "col", class: "medium" }, "For"), h("th", { scope: "col" }, "Found"))),
    h("tbody", {}, parts.map((each) => h("tr", { key: each.part },
      h("th", { scope: "row" }, each.part, each.grade === OK ? null : h("span", { class: "slim trouble" }, `${each.sentence}.`)),
      h("td", {}, h("span", { class: each.grade === OK ? "yes" : each.grade === "failed" ? "no" : "more" }, each.grade)),
      h("td", { class: "medium" }, each.since ? aged(health.age(each.since)) : null),
      h("td", {}, `${each.sentence}.`, (each.others ?? []).map((other) => h("span", { class: "note" }, `${other}.`)), each.remedy ? h("span", { class: "note" }, `${word(each.remedy)}.`) : null)))));
}
