// Events as sentences. The numbers are those of docs/events.md.

import { resource } from "./format.js";

export const TYPES = { 1: "Request", 2: "Application", 3: "Node", 4: "Queue", 5: "User" };
// Details of type 5 that are about groups: limits, links and usage.
const OF_GROUPS = [601, 602, 604];
const NONE = 0;
const SET = 1;
const ADD = 2;
const REMOVE = 3;

// type → change → detail → words; "@" is the reference, "#" the resource.
const WORDS = {
  2: {
    [NONE]: { 213: "waits: its queue is at its maximum of running applications", 214: "may run now", 215: "waits: its user or group is at its maximum of running applications", 216: "may run now" },
    [SET]: { 203: "is in its queue", 204: "is accepted", 205: "is starting", 206: "is running", 207: "is completing", 208: "is completed", 209: "is failing", 210: "has failed", 211: "continues without its placeholders", 212: "is deleted" },
    [ADD]: { 0: "was added", 201: "asks for @: #", 200: "got @: #" },
    [REMOVE]: { 0: "left its queue", 202: "was rejected", 201: "withdrew ask @", 100: "lost ask @ when it ended", 102: "lost ask @: the gang timed out", 500: "released @", 501: "lost @ to preemption", 502: "lost @: it timed out", 503: "replaced @", 504: "lost @ with its node" },
  },
  3: {
    [SET]: { 301: "changed", 302: "changed", 304: "has a new capacity: #", 305: "has foreign allocations: #" },
    [ADD]: { 0: "was added with #", 303: "got @: #", 306: "is reserved for @" },
    [REMOVE]: { 300: "was removed", 303: "no longer has @", 306: "is no longer reserved for @" },
  },
  4: {
    [NONE]: { 0: "has a notice" },
    [SET]: { 400: "has a new configuration", 402: "changed between leaf and parent", 403: "has the max #", 404: "has the guarantee #", 407: "preempted down to its max" },
    [ADD]: { 0: "was added", 401: "was created for an application", 405: "has application @" },
    [REMOVE]: { 0: "was removed", 401: "was empty and was removed", 405: "no longer has application @" },
  },
  5: {
    [SET]: { 600: "has a limit in @: #", 601: "has a limit in @: #", 602: "counts application @" },
    [ADD]: { 603: "uses more in @: #", 604: "uses more in @: #" },
    [REMOVE]: { 600: "no longer has a limit in @", 601: "no longer has a limit in @", 602: "no longer counts application @", 603: "uses less in @: #", 604: "uses less in @: #" },
  },
};

/** The sentence of an event, after the name of its object. An unknown event shows its numbers. */
export function sentence(event) {
  const change = event.eventChangeType ?? NONE;
  const detail = event.eventChangeDetail ?? 0;
  const words = WORDS[event.type]?.[change]?.[detail];
  if (words === undefined) return event.message || `event ${event.type ?? 0}/${change}/${detail}`;
  // Splits instead of replacing, because inserted texts may contain "@" and "#".
  const said = words.split(/([@#])/).map((part) => (part === "@" ? event.referenceID ?? "?" : part === "#" ? resource(quantities(event)) : part)).join("");
  return event.message ? `${said}: ${event.message}` : said;
}

/** Whether an event of users is one of a group. */
export function aboutGroup(event) {
  return event.type === 5 && OF_GROUPS.includes(event.eventChangeDetail);
}

/** An event's resource as quantities by type. */
export function quantities(event) {
  return Object.fromEntries(Object.entries(event.resource?.resources ?? {}).map(([name, { value }]) => [name, value ?? 0]));
}

/** Whether the RM is the replay of a trace, whose cluster stays when it ends. */
export function isReplay(manager) {
  return manager?.extraConfig?.["muster.replay"] === "true";
}

/** The state of an RM; "" while it is connected and not paused. */
export function standing(manager) {
  if (!manager) return "";
  const ended = isReplay(manager) ? `replay ended${manager.life === "STOPPED" ? ", stopped" : ""}` : manager.life;
  const state = manager.life === "RUNNING" ? "" : ended;
  return [state, manager.held ? "paused" : ""].filter(Boolean).join(", ");
}

/** Reasons of pending asks, as headings. Unknown ones are shown by their code. */
const REASONS = {
  WAITING_FOR_TURN: "Not tried yet",
  NO_NODES: "There is no schedulable node",
  LARGER_THAN_ANY_NODE: "Larger than any node",
  NO_NODE_HAS_ROOM: "No node has room",
  FREE_RESOURCES_SCATTERED: "No single node has every requested resource free",
  QUEUE_MAX: "A queue is at its max",
  QUEUE_MAX_APPLICATIONS: "A queue is at its maximum of running applications",
  USER_LIMIT: "A user is at a limit",
  GROUP_LIMIT: "A group is at a limit",
  USER_MAX_APPLICATIONS: "A user is at the maximum of running applications",
  GROUP_MAX_APPLICATIONS: "A group is at its maximum of running applications",
  REQUIRED_NODE_UNKNOWN: "The required node does not exist",
  REQUIRED_NODE_FULL: "The required node is full",
  RESERVED_FOR_OTHERS: "Nodes with room are reserved for other asks",
  GANG_ROOM: "No room for the whole gang",
  GANG_FORMING: "The gang is forming",
  PLACEHOLDER_LEAVING: "A placeholder is being replaced",
  PLACEHOLDER_STUCK: "A placeholder is on a node that admits nothing new",
  RM_ASKED: "The resource manager is being asked",
  RM_TURN: "The resource manager is asked about another ask first",
  REFUSED_BY_RM: "The resource manager refused the nodes",
  RM_ABSENT: "The resource manager is not connected and cannot be asked",
  QUEUE_STOPPED: "The queue is stopped",
  RM_STOPPED: "The resource manager is stopped",
  RM_HELD: "An operator paused the resource manager",
  SOURCE_LISTING: "An external source has not finished its first listing",
};

export function reason(code) {
  return Object.hasOwn(REASONS, code) ? REASONS[code] : code;
}
