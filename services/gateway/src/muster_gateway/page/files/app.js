// The shell: the shown RM, the reader's place, and the refresh of the view.

import { ApiError, ask, json, keepToken, token, url } from "./api.js";
import { fill, h } from "./dom.js";
import { clock, count, duration } from "./format.js";
import { hash, parse } from "./route.js";
import { SystemHealth, band } from "./system-health.js";
import { isReplay, standing } from "./words.js";
import * as applications from "./view-applications.js";
import * as configuration from "./view-configuration.js";
import * as events from "./view-events.js";
import * as futures from "./view-futures.js";
import * as gangs from "./view-gangs.js";
import * as health from "./view-health.js";
import * as nodes from "./view-nodes.js";
import * as overview from "./view-overview.js";
import * as pending from "./view-pending.js";
import * as queues from "./view-queues.js";
import * as search from "./view-search.js";
import { groups, users } from "./view-users.js";

const VIEWS = { __proto__: null, overview, queues, applications, users, groups, nodes, pending, gangs, events, configuration, futures, health, search };
const THEMES = ["auto", "light", "dark"];

// Each view has its own refresh interval. To spare the server, the page also rests after each answer this many times as
// long as the answer took.
const REST_TIMES = 10;
// But no longer than this: an answer that came late once does not leave the page old for minutes.
const REST_LONGEST_MS = 60_000;
// Without an answer: the first wait. It doubles up to the longest.
const AWAY_FIRST_MS = 1000;
const AWAY_LONGEST_MS = 30_000;
const MANAGERS_EVERY_MS = 10_000;
const NOBODY_EVERY_MS = 2000;
// The status shows a lag of more records than this.
const LAG_WORTH_TELLING = 1000;

const place = (id) => document.getElementById(id);

const shell = {
  route: parse(location.hash),
  managers: null, // null: not known yet
  managersAt: -Infinity,
  partitions: [],
  rm: "", // the one that is shown if the address names none; stays when other RMs register
  me: null, // the reader's identity and rights; null: not known yet
  asksIn: false, // the reader wants to log in though nothing needs it
  tokenWanted: "", // the reason why a token is needed; "" if none is
  malformed: false, // the given text cannot be a token
  health: new SystemHealth(healthChanged), // the state of the whole Muster
  status: ["asking", "asking …"], // of the shown view: kind and text
};

// The shown view: its data, its memory, and the signal that ends its requests.
let current = null;
let asleep = null; // ends the wait of the loop
let wanted = false; // wake() was called while the loop did not sleep

// ---- the context of views ------------------------------------------------------------------------------------------

/** The context of a view. */
function contextOf(view, signal) {
  return {
    signal,
    memory: {}, // a view's own memory, as long as it is shown
    lag: 0,
    get thing() { return shell.route.thing; },
    get params() { return shell.route.params; },
    get rm() { return rmShown(); },
    get partition() { return partitionShown(); },
    get partitions() { return shell.partitions; },
    get managers() { return shell.managers ?? []; },
    get manager() { return managerShown(); },
    /** The reader's identity and rights. */
    get me() { return shell.me; },
    /** The state of the whole Muster. */
    get health() { return shell.health; },
    /** Refreshes everything after an action, the RMs too. */
    stale() {
      shell.managersAt = -Infinity;
      wake();
    },
    get width() { return Math.max(280, place("main").clientWidth - 2 * padding()); },
    /** A GET of /ws/v1/PARTS for the shown RM. */
    async get(parts, query = {}) {
      const found = await this.page(parts, query);
      this.lag = Math.max(this.lag, found.lag);
      return found.data;
    },
    /** As get(); null for 404. */
    async find(parts, query = {}) {
      try {
        return await this.get(parts, query);
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      }
    },
    /** As get(), with the headers. */
    async page(parts, query = {}) {
      return json(addressOf(parts, query), signal);
    },
    /** The other partitions that have a queue, node or application of this name. */
    async elsewhere(kind, part) {
      const others = shell.partitions.map((each) => each.name).filter((each) => each !== partitionShown());
      const found = await Promise.all(others.map((partition) => this.find(["explain", kind, part], { partition })));
      return others.filter((_, at) => found[at]);
    },
    async stream(parts, query, until) {
      return ask(addressOf(parts, query), AbortSignal.any([signal, until]), { stream: true });
    },
    /** The address of a link to the same RM and partition. */
    link: (to, thing = "", params = {}) => hash(to, thing, { ...whose(), ...params }),
    /** Changes parameters of this view in the address; refreshes it by default. */
    set(params, { again = true } = {}) {
      const address = hash(shell.route.view, shell.route.thing, { ...shell.route.params, ...params });
      history.replaceState(null, "", address);
      shell.route = parse(address);
      draw();
      if (again) wake();
    },
    redraw: draw,
    wake,
  };
}

function addressOf(parts, query) {
  return url(["ws", "v1", ...parts], { rm: rmShown(), ...query });
}

function padding() {
  return parseFloat(getComputedStyle(place("main")).paddingLeft) || 0;
}

function rmShown() {
  return rmAsked() || shell.rm;
}

function rmAsked() {
  return shell.route.params.rm || new URLSearchParams(location.search).get("rm");
}

function partitionShown() {
  return shell.route.params.partition || shell.partitions[0]?.name || "default";
}

/**
 * The parameters that links carry on: the RM and the partition, if there are several, so that a copied link shows the
 * same everywhere. Otherwise links stay plain.
 */
function whose() {
  const { rm, partition } = shell.route.params;
  return {
    ...(rm || shell.managers?.length > 1 ? { rm: rmShown() } : {}),
    ...(partition || shell.partitions.length > 1 ? { partition: partitionShown() } : {}),
  };
}

// ---- the loop -------------------------------------------------------------------------------------------------------

/** Shows a view, and refreshes it until another one is shown. */
async function show() {
  current?.ends.abort();
  wanted = false;
  const ends = new AbortController();
  const view = VIEWS[shell.route.view] ?? overview;
  const mine = { view, ends, context: contextOf(view, ends.signal), data: undefined, trouble: null };
  current = mine;
  document.title = `${view.title} · Muster`;
  draw();
  let away = 0;
  while (current === mine) {
    if (document.hidden) {
      tellStatus("paused", "paused while hidden");
      await shownAgain(ends.signal);
      continue;
    }
    const began = performance.now();
    let rest = view.every_ms;
    try {
      await ready(ends.signal, view);
      if (current !== mine) return;
      sayWho();
      // A view's memory belongs to one RM and partition.
      const now = `${rmShown()} ${partitionShown()}`;
      if (mine.of !== now) Object.assign(mine, { of: now, data: undefined, context: contextOf(view, ends.signal) });
      mine.context.lag = 0;
      const data = canShow(view) ? await view.load(mine.context) : null;
      if (current !== mine) return;
      if (wanted) {
        // The reader has chosen something else, or acted, meanwhile: this is the answer to an older question.
        wanted = false;
        continue;
      }
      Object.assign(mine, { data, trouble: null });
      away = 0;
      shell.malformed = false;
      const absence = standing(managerShown());
      if (absence) tellStatus(isReplay(managerShown()) ? "ended" : "away", absence.toLowerCase());
      else tellStatus("live", mine.context.lag > LAG_WORTH_TELLING ? `${count(mine.context.lag, "record")} behind` : "live");
      rest = Math.max(rest, Math.min(REST_TIMES * (performance.now() - began), REST_LONGEST_MS));
    } catch (error) {
      if (current !== mine || ends.signal.aborted) return;
      rest = troubled(mine, error, away);
      away += 1;
    }
    draw();
    if (rest === Infinity) tellStatus("paused", "needs a token");
    await asleepFor(rest, ends.signal, mine.trouble?.away ? (left) => tellAway(left) : null);
  }
}

function canShow(view) {
  return shell.managers?.length > 0 || view.alone;
}

/** The effect of an error on the page, and the wait before a retry. */
function troubled(mine, error, away) {
  if (!(error instanceof ApiError)) {
    console.error(error);
    mine.trouble = new ApiError(-1, `This page has a defect: ${error.message}`);
    return AWAY_LONGEST_MS;
  }
  mine.trouble = error;
  if (error.status === 401) {
    shell.tokenWanted = error.message;
    return Infinity;
  }
  if (error.status === 0) shell.health.wake();
  if (error.away) return Math.min(AWAY_LONGEST_MS, AWAY_FIRST_MS * 2 ** away);
  if (error.status === 404) shell.managersAt = -Infinity; // the RM itself may be gone
  return Math.max(5000, mine.view.every_ms);
}

/** Fetches all RMs, and the partitions of the shown one. They are few and rarely change. */
async function ready(signal, view) {
  try {
    await managersKnown(signal);
  } catch (error) {
    // Only the view knows them. What needs no RM is shown without it.
    if (!(view.alone && error instanceof ApiError && error.away && error.status !== 0)) throw error;
  }
}

async function managersKnown(signal) {
  if (performance.now() - shell.managersAt < (shell.managers?.length ? MANAGERS_EVERY_MS : NOBODY_EVERY_MS)) return;
  shell.managers = (await json(url(["ws", "v1", "resource-managers"]), signal)).data;
  shell.tokenWanted = "";
  if (!shell.managers.some((each) => each.rmID === shell.rm)) shell.rm = (shell.managers.find((each) => each.default) ?? shell.managers.find((each) => each.life !== "STOPPED") ?? shell.managers[0])?.rmID ?? "";
  const rm = rmShown();
  shell.partitions = shell.managers.some((each) => each.rmID === rm) ? (await json(url(["ws", "v1", "partitions"], { rm }), signal)).data : [];
  shell.me = (await json(url(["ws", "v1", "whoami"], { rm }), signal)).data;
  shell.managersAt = performance.now();
}

/** Puts RM and partition into the address if there are several. */
function sayWho() {
  const { view, thing, params } = shell.route;
  const address = hash(view, thing, { ...params, ...whose() });
  if (address === hash(view, thing, params)) return;
  history.replaceState(null, "", address);
  shell.route = parse(address);
}

/** Waits, in steps if the remaining time is shown; `wake` ends it. */
async function asleepFor(milliseconds, signal, tell) {
  const until = performance.now() + milliseconds;
  let woken = wanted;
  wanted = false;
  let mine;
  const wakened = new Promise((resolve) => { asleep = mine = () => { woken = true; resolve(); }; });
  while (!woken && !signal.aborted && performance.now() < until) {
    const left = until - performance.now();
    tell?.(left);
    let timer;
    const passed = left === Infinity ? new Promise(() => {}) : new Promise((resolve) => { timer = setTimeout(resolve, tell ? Math.min(left, 1000) : left); });
    await Promise.race([passed, wakened, gone(signal)]);
    clearTimeout(timer);
  }
  if (asleep === mine) asleep = null; // (else the next view sleeps already)
}

function gone(signal) {
  return new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
}

function shownAgain(signal) {
  return Promise.race([new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true })), gone(signal)]);
}

/** Refreshes at once, or as soon as a running request has its answer. */
function wake() {
  if (asleep) asleep();
  else wanted = true;
}

// ---- drawing --------------------------------------------------------------------------------------------------------

function keyOf({ view, thing, params }) {
  return JSON.stringify([view, thing, params.rm, params.partition]);
}

function draw() {
  drawShell();
  const mine = current;
  const main = place("main");
  main.dataset.view = shell.route.view;
  main.dataset.old = areOld() ? "yes" : "no"; // its figures have no colour
  if (shell.tokenWanted || shell.asksIn) return fill(main, tokenForm());
  if (mine.trouble && !mine.trouble.away && !(mine.trouble.status === 404 && shell.managers?.length === 0)) {
    return fill(main, h("h1", {}, mine.view.title), h("p", { class: "trouble" }, troubleSaid(mine.trouble)), chooseAnother());
  }
  if (mine.data === undefined) {
    return fill(main, h("h1", {}, mine.view.title), mine.trouble ? null : h("p", { class: "empty", key: "wait" }, "Loading …"));
  }
  if (!canShow(mine.view)) return fill(main, h("h1", {}, mine.view.title), nobody());
  return fill(main, absenceNotice(), mine.view.render(mine.context, mine.data));
}

function managerShown() {
  return shell.managers?.find((each) => each.rmID === rmShown());
}

/** Whether the shown figures are old or do not change. (Those of a replay that ended are its result.) */
function areOld() {
  if (shell.health.goneAt !== null || !shell.health.works("view")) return true;
  const manager = managerShown();
  return standing(manager) !== "" && !(isReplay(manager) && !manager.held) && shell.route.view !== "health";
}

/** The notice above an RM's figures if the RM is away or Muster schedules nothing for it, with a remedy. */
function absenceNotice() {
  const manager = managerShown();
  if (!standing(manager)) return null;
  return h("section", { class: "card absence", key: "absence", role: "status", "aria-label": "State of the resource manager" },
    h("b", {}, isReplay(manager) ? `${manager.rmID} (replay).` : `${manager.rmID} is ${standing(manager)}.`), " ", manager.description);
}

function troubleSaid(trouble) {
  if (trouble.status === 403) return `Your token has no access to this: ${trouble.message}`;
  return trouble.message;
}

function chooseAnother() {
  if (!shell.managers?.length || shell.managers.some((each) => each.rmID === rmShown())) return null;
  return h("p", {}, "Registered: ", shell.managers.map((each, at) => [at ? ", " : "", h("a", { href: hash(shell.route.view, "", { rm: each.rmID }) }, each.rmID)]));
}

function nobody() {
  return h("section", { class: "blank" },
    h("h2", {}, "No resource manager is registered"),
    shell.health.faults.length ? h("p", { key: "fault" }, "None may be able to register: see above what does not work.") : h("p", { key: "how" }, "When one registers at the gateway's gRPC address, this page shows its cluster. For a demonstration, run ",
      h("code", {}, "muster replay-trace --keep"), " against this gateway, or ", h("code", {}, "muster demo"), "."));
}

function drawShell() {
  const shown = shell.route.view in VIEWS ? shell.route.view : "overview";
  const view = VIEWS[shown].within ?? shown;
  fill(place("nav"), h("ul", {}, Object.entries(VIEWS).filter(([, each]) => !each.within).map(([name, each]) =>
    h("li", { key: name }, h("a", { href: hash(name, "", whose()), "aria-current": name === view ? "page" : null }, each.title)))));
  fill(place("chooser"), chooser());
  fill(place("search"), searchForm());
  fill(place("tools"), themeButton(), account());
}

/** Whose rights these are, and the way in or out. A certificate is the browser's: only the browser can forget it. */
function account() {
  const found = [];
  const { me } = shell;
  if (me && !shell.tokenWanted) found.push(h("span", { class: "me", key: "me", title: rightsSaid(me) }, h("span", { class: "sr" }, "Identity: "), me.identity, h("span", { class: "note" }, ` ${me.role === "none" && me.mayOperate ? "operator" : me.role}`)));
  if (token() !== null) found.push(h("button", { type: "button", class: "quiet", key: "out", on: { click: forget } }, "Log out"));
  else if (me?.tokens && !shell.tokenWanted && !shell.asksIn) found.push(h("button", { type: "button", class: "quiet", key: "in", on: { click: askIn } }, "Log in"));
  return found;
}

function rightsSaid(me) {
  const rms = (globs) => (globs.includes("*") ? "every resource manager" : globs.join(", ") || "none");
  return `${me.identity}, known by ${me.proof}. Role: ${me.role}. Operates: ${rms(me.operates)}. Acts as: ${rms(me.actAs)}.`;
}

function askIn() {
  shell.asksIn = true;
  draw();
}

/** The search field. Enter opens the results; while they are shown, they follow the text. */
function searchForm() {
  const shown = shell.route.view === "search";
  const submit = (event) => {
    event.preventDefault();
    const q = event.currentTarget.elements.q.value.trim();
    if (!q) return;
    const address = hash("search", "", { ...whose(), q });
    if (location.hash === address) place("main").focus({ preventScroll: true });
    else location.hash = address;
  };
  const follow = (event) => {
    if (!shown || !current) return;
    const empty = !shell.route.params.q;
    current.context.set({ q: event.target.value.trim() }, { again: empty });
  };
  return h("form", { role: "search", "aria-label": "Search the cluster", key: "search", on: { submit } },
    h("input", { type: "search", name: "q", "aria-label": "Search the cluster", "aria-keyshortcuts": "Control+K Meta+K", title: "Ctrl+K", placeholder: "Search", autocomplete: "off", spellcheck: "false", value: shown ? shell.route.params.q ?? "" : "", on: { input: follow } }));
}

function chooser() {
  const found = [];
  const managers = shell.managers ?? [];
  if (managers.length === 1 && managers[0].rmID === rmShown()) found.push(h("span", { class: "rm", key: "one" }, h("span", { class: "label" }, "RM "), managers[0].rmID));
  else if (managers.length) found.push(select("Resource manager", "rm", managers.map((each) => each.rmID), rmShown(), (rm) => go({ rm, partition: null }), (rm) => named(managers, rm)));
  if (shell.partitions.length > 1) found.push(select("Partition", "partition", shell.partitions.map((each) => each.name), partitionShown(), (partition) => go({ partition })));
  return found;
}

/** An RM in the chooser, with its state if it is away. */
function named(managers, rm) {
  const state = standing(managers.find((each) => each.rmID === rm));
  return state ? `${rm} (${state})` : rm;
}

function select(label, name, options, chosen, change, words = (each) => each) {
  const all = options.includes(chosen) ? options : [chosen, ...options];
  return h("label", { key: name }, h("span", { class: "label" }, label, " "),
    h("select", { name, value: chosen, on: { change: (event) => change(event.target.value) } }, all.map((each) => h("option", { value: each }, words(each)))));
}

function go(params) {
  // Search terms of one cluster do not fit another.
  const { q, state, queue, user, reason, type, page, lanes, ...kept } = shell.route.params;
  location.hash = hash(shell.route.view, "", { ...kept, ...(shell.route.view === "search" ? { q } : {}), ...params });
}

// ---- light and dark -------------------------------------------------------------------------------------------------

function theme() {
  return document.documentElement.dataset.theme ?? "auto";
}

function themeButton() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  return h("button", { type: "button", class: "quiet themebutton", key: "theme", title: `Switch to ${next}`, on: { click: () => setTheme(next) } }, h("span", { class: "themeword" }, "Theme: "), theme());
}

function setTheme(wanted) {
  if (wanted === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = wanted;
  try {
    if (wanted === "auto") localStorage.removeItem("muster.theme");
    else localStorage.setItem("muster.theme", wanted);
  } catch {
    // Without storage, the choice lasts as long as this page.
  }
  draw();
}

// ---- the token ------------------------------------------------------------------------------------------------------

function tokenForm() {
  return h("form", { class: "token", key: "token", on: { submit: takeToken } },
    h("h1", {}, "A token, please"),
    h("p", {}, shell.tokenWanted ? "This gateway needs a token. " : "", "The token stays in this tab and is forgotten when you close it."),
    h("label", { for: "token" }, "Token"),
    h("input", { id: "token", name: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, autofocus: true }),
    h("p", { class: "trouble", role: "alert" }, token() !== null || shell.malformed ? `Refused: ${shell.tokenWanted}.` : ""),
    h("button", { type: "submit" }, "Show the cluster"));
}

function takeToken(event) {
  event.preventDefault();
  const field = event.currentTarget.elements.token;
  const given = field.value.trim();
  if (!given) return;
  // A text that no header can hold is no token.
  if (!/^[\x21-\x7e]+$/.test(given)) {
    shell.tokenWanted = "a token has letters, digits and . _ ~ + / - only";
    shell.malformed = true;
    return draw();
  }
  keepToken(given);
  field.value = "";
  shell.managersAt = -Infinity;
  Object.assign(shell, { tokenWanted: "", asksIn: false });
  show();
}

function forget() {
  keepToken(null);
  Object.assign(shell, { me: null, managers: null, managersAt: -Infinity, partitions: [] });
  show();
}

// ---- status ---------------------------------------------------------------------------------------------------------

/** Says how the shown view is. What the state of the whole has to say comes first. */
function tellStatus(kind, text) {
  shell.status = [kind, text];
  drawStatus();
  if (kind !== "away" || !current?.trouble?.away) fill(place("notice"));
}

function drawStatus() {
  const { health } = shell;
  let [kind, text] = shell.status;
  if (kind !== "paused") {
    if (health.goneAt !== null) [kind, text] = ["failed", "away"];
    else if (health.grade && !health.ok) [kind, text] = [health.grade, health.grade];
    else if (kind === "live" && !health.ok) [kind, text] = ["asking", "asking …"];
  }
  fill(place("status"), h("span", { class: `dot ${kind}` }), h("span", {}, text, kind === "live" ? h("span", { class: "clock" }, `, ${clock(Date.now())}`) : null));
  fill(place("whole"), shell.tokenWanted ? null : band(health));
  place("main").dataset.old = areOld() ? "yes" : "no";
}

/** An answer about the state of the whole came, or none. What does not answer now is asked again when it is back. */
function healthChanged(before) {
  drawStatus();
  if (before !== shell.health.grade || shell.route.view === "health") draw();
  if (current?.trouble?.away && shell.health.goneAt === null && before !== shell.health.grade) wake();
}

function tellAway(left) {
  tellStatus("away", "away");
  const known = shell.health.goneAt !== null; // the band above says it
  fill(place("notice"), h("div", { class: "notice" }, h("div", { class: "inner" },
    known ? null : h("span", {}, h("b", {}, current.trouble?.message ?? "The gateway does not answer."), current.data === undefined ? "" : " This page shows old data."),
    h("span", { "aria-live": "off" }, `Next try in ${duration(Math.max(1000, Math.ceil(left / 1000) * 1000))}.`),
    h("button", { type: "button", on: { click: tryNow } }, "Try now"))));
}

function tryNow() {
  shell.health.wake();
  wake();
}

// ---- begin ----------------------------------------------------------------------------------------------------------

window.addEventListener("hashchange", () => {
  const before = shell.route;
  shell.route = parse(location.hash);
  if (before.params.rm !== shell.route.params.rm) {
    shell.managersAt = -Infinity;
    shell.partitions = [];
  }
  if (current && keyOf(before) === keyOf(shell.route)) {
    draw();
    wake();
    return;
  }
  show();
  if (before.view !== shell.route.view || before.thing !== shell.route.thing) {
    window.scrollTo(0, 0);
    place("main").focus({ preventScroll: true });
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) tryNow(); });
document.querySelector(".skip").addEventListener("click", (event) => {
  // The hash is the route, so the link must not change it.
  event.preventDefault();
  place("main").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  const field = document.querySelector("#search input");
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
});
let scrolled = 0;
window.addEventListener("scroll", () => {
  cancelAnimationFrame(scrolled);
  scrolled = requestAnimationFrame(() => current?.context.memory.scrolled?.());
}, { passive: true });
let resized = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(draw);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

show();
shell.health.follow();
