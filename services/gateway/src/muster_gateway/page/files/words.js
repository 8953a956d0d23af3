// Events in words. The numbers are those of docs/events.md.

import { resource } from "./format.js";

export const TYPES = { 1: "Request", 2: "Application", 3: "Node", 4: "Queue", 5: "User" };
// Of those of type 5: limits, links and usage of groups.
const OF_GROUPS = [601, 602, 604];
const NONE = 0;
const SET = 1;
const ADD = 2;
const REMOVE = 3;

// type → change → detail → words; "@" is the reference, "#" the resource.
const WORDS = {
  2: {
    [NONE]: { 213: "waits: its queue runs as many applications as it may", 214: "may run now", 215: "waits: its user or group runs as many applications as it may", 216: "may run now" },
    [SET]: { 203: "is in its queue", 204: "is accepted", 205: "is starting", 206: "is running", 207: "has nothing left to do", 208: "is completed", 209: "is failing", 210: "has failed", 211: "goes on without its placeholders", 212: "is forgotten" },
    [ADD]: { 0: "came", 201: "asks for @: #", 200: "got @: #" },
    [REMOVE]: { 0: "left its queue", 202: "was rejected", 201: "took ask @ back", 100: "lost ask @ with its end", 102: "gave ask @ up: the gang's time is over", 500: "released @", 501: "lost @ to preemption", 502: "lost @: its time was over", 503: "let @ make room", 504: "lost @ with its node" },
  },
  3: {
    [SET]: { 301: "says", 302: "says", 304: "has another capacity: #", 305: "is used by others: #" },
    [ADD]: { 0: "came with #", 303: "takes @: #", 306: "is kept free for @" },
    [REMOVE]: { 300: "is gone", 303: "no longer holds @", 306: "is no longer kept free for @" },
  },
  4: {
    [SET]: { 400: "is configured anew", 402: "is of another kind", 403: "has the max #", 404: "has the guarantee #", 407: "was cut back to its max" },
    [ADD]: { 0: "came", 401: "was made for an application", 405: "has application @" },
    [REMOVE]: { 0: "is gone", 401: "was empty, and is gone", 405: "no longer has application @" },
  },
  5: {
    [SET]: { 600: "has a limit in @: #", 601: "has a limit in @: #", 602: "counts application @" },
    [ADD]: { 603: "uses more in @: #", 604: "uses more in @: #" },
    [REMOVE]: { 600: "has no limit in @ any more", 601: "has no limit in @ any more", 602: "counts application @ no more", 603: "uses less in @: #", 604: "uses less in @: #" },
  },
};

/** What an event says, behind the name of its object. An unknown one says its numbers. */
export function sentence(event) {
  const change = event.eventChangeType ?? NONE;
  const detail = event.eventChangeDetail ?? 0;
  const words = WORDS[event.type]?.[change]?.[detail];
  if (words === undefined) return event.message || `event ${event.type ?? 0}/${change}/${detail}`;
  // (Split, not replaced: what is put in may hold the signs itself.)
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

/** Reasons of waiting, as headings. Unknown ones are shown as they are called. */
const REASONS = {
  WAITING_FOR_TURN: "Not looked at yet",
  NO_NODES: "There is no schedulable node",
  LARGER_THAN_ANY_NODE: "Larger than any node",
  NO_NODE_HAS_ROOM: "No node has room",
  FREE_RESOURCES_SCATTERED: "Free resources are scattered over nodes",
  QUEUE_MAX: "A queue is at its max",
  QUEUE_MAX_APPLICATIONS: "A queue runs as many applications as it may",
  USER_LIMIT: "A user is at a limit",
  GROUP_LIMIT: "A group is at a limit",
  USER_MAX_APPLICATIONS: "A user runs as many applications as they may",
  GROUP_MAX_APPLICATIONS: "A group runs as many applications as it may",
  REQUIRED_NODE_UNKNOWN: "The required node is not known",
  REQUIRED_NODE_FULL: "The required node is full",
  RESERVED_FOR_OTHERS: "Nodes with room are kept free for others",
  GANG_ROOM: "No room for the whole gang",
  GANG_FORMING: "The gang is forming",
  PLACEHOLDER_LEAVING: "A placeholder is making room",
  PLACEHOLDER_STUCK: "A placeholder is on a node that takes nothing new",
  RM_ASKED: "The resource manager is being asked",
  REFUSED_BY_RM: "The resource manager refused the nodes",
  RM_ABSENT: "The resource manager is not there to be asked",
  QUEUE_STOPPED: "The queue is stopped",
  RM_STOPPED: "The resource manager is stopped",
  RM_HELD: "An operator paused the resource manager",
  SOURCE_LISTING: "An outside source has not said everything yet",
};

export function reason(code) {
  return Object.hasOwn(REASONS, code) ? REASONS[code] : code;
}
