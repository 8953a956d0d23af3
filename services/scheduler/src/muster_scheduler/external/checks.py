"""What an object from outside must be like to go to the log and to be taken from it: names, amounts, sizes. Pure.

The same checks stand at both ends: in front of the log an event handler's mistake is told where it was made; behind it
nothing reaches the core that was never to be there, whoever wrote it. Only what an object says by itself is judged;
whether a node or queue exists is the core's business. Limits are those that the gateway has for RMs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from muster_si.constants import CPU, MEMORY

from muster_scheduler.core.external import (
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    id_of,
    kind_of,
)

NAME_CHARACTERS_MAX = 256
QUEUE_CHARACTERS_MAX = 1024
REASON_CHARACTERS_MAX = 512
TYPES_MAX = 128
# Exact in a double, hence in every JSON reader.
QUANTITY_MAX = 2**53
TAGS_MAX = 4096
# Below the log's own limit of a record (1 MiB), with the most that quantities and names can take besides.
TAGS_BYTES_MAX = 512 * 1024
GROUPS_MAX = 1024
# A century: added to now in nanoseconds it stays an int64.
DURATION_NS_MAX = 100 * 365 * 24 * 3600 * 1_000_000_000
PRIORITY_MAX = 2**31 - 1
# Types whose names need no look.
USUAL_TYPES = frozenset({CPU, MEMORY, "ephemeral-storage", "pods"})

_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def shown(value: object, limit: int = 60) -> str:
    """A value as it may stand in a message, whatever it is: short, in one line, and not in its own words where these
    could fail (numbers of a million digits, lists within lists)."""
    match value:
        case None:
            return "nothing"
        case str():
            return ascii(value) if len(value) <= limit else f"{value[:limit]!a}… ({len(value)} characters)"
        case bool() | float():
            return repr(value)
        case int():
            return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
        case Mapping() | list() | tuple():
            return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def name_problem(value: object, path: str, limit: int = NAME_CHARACTERS_MAX) -> str:
    """Why a text cannot name something; "": it can."""
    if type(value) is str and 0 < len(value) <= limit and value.isprintable() and value[0] != " ":
        return ""  # as nearly always
    if isinstance(value, str) and not value.strip():
        return f"{path}: {shown(value)}, expected a name"
    return text_problem(value, path, limit)


def text_problem(value: object, path: str, limit: int = NAME_CHARACTERS_MAX) -> str:
    """Why a text cannot be taken; "": it can."""
    if not isinstance(value, str):
        return f"{path}: {shown(value)}, expected a text"
    if len(value) > limit:
        return f"{path}: {len(value)} characters, expected at most {limit}"
    # (isprintable is quick, and false for a few that are allowed too.)
    if not value.isprintable() and (
        bad := next((each for each in value if unicodedata.category(each) in _FORBIDDEN_CATEGORIES), None)
    ):
        return f"{path}: {shown(value)} has U+{ord(bad):04X}, expected no character that breaks a line"
    return ""


def plain(text: str, limit: int = REASON_CHARACTERS_MAX) -> str:
    """Any text as one that :func:`text_problem` takes: in one line, cut."""
    kept = "".join(" " if unicodedata.category(each) in _FORBIDDEN_CATEGORIES else each for each in text[: 4 * limit])
    words = " ".join(kept.split())
    return words if len(words) <= limit else f"{words[: limit - 1]}…"


def source_problem(partition: object, source: object, life: object) -> str:
    """What is wrong with how a source is called; "": nothing."""
    return text_problem(partition, "partition") or name_problem(source, "source") or name_problem(life, "life")


def problem_of(change: ExternalChange) -> str:
    """What is wrong with a change: the field, its value, what was expected; "": nothing."""
    kind, what = change.kind, change.what
    if not isinstance(kind, ExternalKind):
        return f"kind: {shown(kind)}, expected one of {', '.join(ExternalKind)}"
    limit = QUEUE_CHARACTERS_MAX if kind is ExternalKind.QUEUE else NAME_CHARACTERS_MAX
    if problem := name_problem(change.object_id, "id", limit):
        return problem
    if what is None:
        return ""
    if change.stale and kind is not ExternalKind.ALLOCATION:
        return f"stale: true beside an object of kind {kind}, expected one or the other"
    if kind_of(what) is not kind:
        return f"kind: {kind}, with an object of kind {kind_of(what)}"
    if id_of(what) != change.object_id:
        return f"id: {shown(change.object_id)}, with an object that says {shown(id_of(what))}"
    match what:
        case ExternalNode():
            return (
                ("" if what.capacity is None else _quantities_problem(what.capacity, "capacity"))
                or _quantities_problem(what.occupied, "occupied")
                or _texts_problem(what.attributes, "attributes")
                or _flag_problem(what.schedulable, "schedulable")
                or _flag_problem(what.whole, "whole")
                or _flag_problem(what.brings, "brings")
            )
        case ExternalAllocation():
            return (
                name_problem(what.node_id, "node_id")
                or _quantities_problem(what.quantities, "quantities")
                or text_problem(what.app_id, "app_id")
                or _amount_problem(what.priority, "priority", PRIORITY_MAX, least=-PRIORITY_MAX - 1)
                or _texts_problem(what.tags, "tags")
            )
        case ExternalQueue():
            return _quantities_problem(what.maximum, "maximum")
        case ExternalApplication():
            return (
                name_problem(what.queue, "queue", QUEUE_CHARACTERS_MAX)
                or text_problem(what.user, "user")
                or _groups_problem(what.groups)
                or _texts_problem(what.tags, "tags")
            )
        case ExternalOffer():
            return (
                name_problem(what.node_id, "node_id")
                or _quantities_problem(what.quantities, "quantities")
                or _texts_problem(what.attributes, "attributes")
                or _amount_problem(what.idle_ns, "idle_ns", DURATION_NS_MAX)
                or _flag_problem(what.revoked, "revoked")
                or _amount_problem(what.grace_ns, "grace_ns", DURATION_NS_MAX)
            )
        case ExternalPool():
            return _amount_problem(what.quantity, "quantity", QUANTITY_MAX) or _amount_problem(
                what.occupied, "occupied", QUANTITY_MAX
            )


def _quantities_problem(quantities: object, path: str) -> str:
    if not isinstance(quantities, Mapping):
        return f"{path}: {shown(quantities)}, expected amounts by type"
    if len(quantities) > TYPES_MAX:
        return f"{path}: {len(quantities)} types, expected at most {TYPES_MAX}"
    for name, value in quantities.items():
        if type(value) is int and 0 <= value <= QUANTITY_MAX and type(name) is str and name in USUAL_TYPES:
            continue  # most are so, and this is looked at for each change
        if problem := name_problem(name, f"{path}, name of a type"):
            return problem
        if problem := _amount_problem(value, f"{path}[{shown(name)}]", QUANTITY_MAX):
            return problem
    return ""


def _amount_problem(value: object, path: str, most: int, *, least: int = 0) -> str:
    # (A bool is an int to Python, and a mistake here.)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        return f"{path}: {shown(value)}, expected an integer from {least} to {most}"
    return ""


def _flag_problem(value: object, path: str) -> str:
    return "" if isinstance(value, bool) else f"{path}: {shown(value)}, expected true or false"


def _groups_problem(groups: object) -> str:
    if not isinstance(groups, tuple):
        return f"groups: {shown(groups)}, expected a tuple of names"
    if len(groups) > GROUPS_MAX:
        return f"groups: {len(groups)}, expected at most {GROUPS_MAX}"
    return next((problem for group in groups if (problem := name_problem(group, "groups"))), "")


def _texts_problem(texts: object, path: str) -> str:
    if not isinstance(texts, Mapping):
        return f"{path}: {shown(texts)}, expected texts by name"
    if len(texts) > TAGS_MAX:
        return f"{path}: {len(texts)} entries, expected at most {TAGS_MAX}"
    size = 0
    for name, value in texts.items():
        if not isinstance(name, str) or not isinstance(value, str):
            return f"{path}[{shown(name)}]: {shown(value)}, expected a text by name"
        if name.isascii() and value.isascii():
            size += len(name) + len(value)
            continue
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError:
            return f"{path}[{shown(name)}]: {shown(value)} has half a character, expected text that UTF-8 can carry"
    if size > TAGS_BYTES_MAX:
        return f"{path}: {size} bytes, expected at most {TAGS_BYTES_MAX}"
    return ""
