"""Checks of external objects, before they go to the log and when they are read from it: names, amounts, sizes. Pure.

The same checks run at both ends. Before the log, they report an event handler's mistake where it was made. After the
log, they keep invalid objects out of the core, whoever wrote them. They judge only the object itself; the core judges
whether its node or queue exists. The limits are those of the gateway for RMs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from muster_si.characters import code_point, first_hidden
from muster_si.constants import CPU, MEMORY

from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
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
# Below the log's limit of a record (1 MiB), together with the largest quantities and names.
TAGS_BYTES_MAX = 512 * 1024
GROUPS_MAX = 1024
# A century: added to the present in nanoseconds, it still fits an int64.
DURATION_NS_MAX = 100 * 365 * 24 * 3600 * 1_000_000_000
PRIORITY_MAX = 2**31 - 1
# The names of these types need no check.
USUAL_TYPES = frozenset({CPU, MEMORY, "ephemeral-storage", "pods"})

_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def quote(value: object, limit: int = 60) -> str:
    """A text for any value in a message: short, in one line. Values whose own text could fail (numbers of a million
    digits, nested lists) are described instead.
    """
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
    """Why a text cannot be a name; "": it can."""
    if type(value) is str and 0 < len(value) <= limit and value.isascii() and value.isprintable() and value[0] != " ":
        return ""  # the common case
    if isinstance(value, str) and not value.strip():
        return f"{path}: {quote(value)}, expected a name"
    problem = text_problem(value, path, limit)
    if not problem and isinstance(value, str) and (hidden := first_hidden(value)) is not None:
        return f"{path}: {quote(value)} has {code_point(hidden)}, expected visible characters"
    return problem


def text_problem(value: object, path: str, limit: int = NAME_CHARACTERS_MAX) -> str:
    """Why a text is not accepted; "": it is."""
    if not isinstance(value, str):
        return f"{path}: {quote(value)}, expected a text"
    if len(value) > limit:
        return f"{path}: {len(value)} characters, expected at most {limit}"
    # (isprintable is quick, but false for a few permitted characters.)
    if not value.isprintable() and (
        bad := next(
            (character for character in value if unicodedata.category(character) in _FORBIDDEN_CATEGORIES), None
        )
    ):
        return f"{path}: {quote(value)} has U+{ord(bad):04X}, expected no character that breaks a line"
    return ""


def sanitize(text: str, limit: int = REASON_CHARACTERS_MAX) -> str:
    """Turns any text into one that :func:`text_problem` accepts: in one line, cut."""
    kept = "".join(
        " " if unicodedata.category(character) in _FORBIDDEN_CATEGORIES else character
        for character in text[: 4 * limit]
    )
    words = " ".join(kept.split())
    return words if len(words) <= limit else f"{words[: limit - 1]}…"


def source_problem(partition: object, source: object, life: object) -> str:
    """The problem of a source's names; "": there is none."""
    return text_problem(partition, "partition") or name_problem(source, "source") or name_problem(life, "life")


def problem_of(change: ExternalChange) -> str:
    """The problem of a change: the field, its value, and what was expected; "": there is none."""
    kind, obj = change.kind, change.what
    if not isinstance(kind, ExternalKind):
        return f"kind: {quote(kind)}, expected one of {', '.join(ExternalKind)}"
    if problem := _id_problem(change):
        return problem
    if obj is None:
        return ""
    if kind_of(obj) is not kind:
        return f"kind: {kind}, with an object of kind {kind_of(obj)}"
    if id_of(obj) != change.object_id:
        return f"id: {quote(change.object_id)}, with an object that says {quote(id_of(obj))}"
    return _content_problem(obj) or _flags_problem(obj)


def problem_of_read(change: ExternalChange) -> str:
    """:func:`problem_of` for a change read from its message, whose kind and id are the object's and whose flags are
    booleans.
    """
    return _id_problem(change) or ("" if change.what is None else _content_problem(change.what))


def _id_problem(change: ExternalChange) -> str:
    limit = QUEUE_CHARACTERS_MAX if change.kind is ExternalKind.QUEUE else NAME_CHARACTERS_MAX
    if problem := name_problem(change.object_id, "id", limit):
        return problem
    if change.stale and change.what is not None and change.kind is not ExternalKind.ALLOCATION:
        return f"stale: true beside an object of kind {change.kind}, expected one or the other"
    return ""


def _flags_problem(obj: ExternalObject) -> str:
    if not isinstance(obj, ExternalNode):
        return ""
    return (
        _flag_problem(obj.schedulable, "schedulable")
        or _flag_problem(obj.whole, "whole")
        or _flag_problem(obj.brings, "brings")
    )


def _content_problem(obj: ExternalObject) -> str:
    match obj:
        case ExternalNode():
            return (
                ("" if obj.capacity is None else _quantities_problem(obj.capacity, "capacity"))
                or _quantities_problem(obj.occupied, "occupied")
                or _texts_problem(obj.attributes, "attributes")
            )
        case ExternalAllocation():
            return (
                name_problem(obj.node_id, "node_id")
                or _quantities_problem(obj.quantities, "quantities")
                or text_problem(obj.app_id, "app_id")
                or _amount_problem(obj.priority, "priority", PRIORITY_MAX, least=-PRIORITY_MAX - 1)
                or _texts_problem(obj.tags, "tags")
            )
        case ExternalQueue():
            return _quantities_problem(obj.maximum, "maximum")
        case ExternalApplication():
            return (
                name_problem(obj.queue, "queue", QUEUE_CHARACTERS_MAX)
                or text_problem(obj.user, "user")
                or _groups_problem(obj.groups)
                or _texts_problem(obj.tags, "tags")
            )
        case ExternalOffer():
            return (
                name_problem(obj.node_id, "node_id")
                or _quantities_problem(obj.quantities, "quantities")
                or _texts_problem(obj.attributes, "attributes")
                or _amount_problem(obj.idle_ns, "idle_ns", DURATION_NS_MAX)
                or _flag_problem(obj.revoked, "revoked")
                or _amount_problem(obj.grace_ns, "grace_ns", DURATION_NS_MAX)
            )
        case ExternalPool():
            return _amount_problem(obj.quantity, "quantity", QUANTITY_MAX) or _amount_problem(
                obj.occupied, "occupied", QUANTITY_MAX
            )


def _quantities_problem(quantities: object, path: str) -> str:
    if type(quantities) is not dict and not isinstance(quantities, Mapping):
        return f"{path}: {quote(quantities)}, expected amounts by type"
    if len(quantities) > TYPES_MAX:
        return f"{path}: {len(quantities)} types, expected at most {TYPES_MAX}"
    for name, value in quantities.items():
        if type(value) is int and 0 <= value <= QUANTITY_MAX and type(name) is str and name in USUAL_TYPES:
            continue  # the common case; this runs for each change
        if problem := name_problem(name, f"{path}, name of a type"):
            return problem
        if problem := _amount_problem(value, f"{path}[{quote(name)}]", QUANTITY_MAX):
            return problem
    return ""


def _amount_problem(value: object, path: str, most: int, *, least: int = 0) -> str:
    # (To Python, a bool is an int; here it is a mistake.)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        return f"{path}: {quote(value)}, expected an integer from {least} to {most}"
    return ""


def _flag_problem(value: object, path: str) -> str:
    return "" if value is True or value is False else f"{path}: {quote(value)}, expected true or false"


def _groups_problem(groups: object) -> str:
    if not isinstance(groups, tuple):
        return f"groups: {quote(groups)}, expected a tuple of names"
    if len(groups) > GROUPS_MAX:
        return f"groups: {len(groups)}, expected at most {GROUPS_MAX}"
    return next((problem for group in groups if (problem := name_problem(group, "groups"))), "")


def _texts_problem(texts: object, path: str) -> str:
    if type(texts) is not dict and not isinstance(texts, Mapping):
        return f"{path}: {quote(texts)}, expected texts by name"
    if len(texts) > TAGS_MAX:
        return f"{path}: {len(texts)} entries, expected at most {TAGS_MAX}"
    size = 0
    for name, value in texts.items():
        if not isinstance(name, str) or not isinstance(value, str):
            return f"{path}[{quote(name)}]: {quote(value)}, expected a text by name"
        if name.isascii() and value.isascii():
            size += len(name) + len(value)
            continue
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError:
            return f"{path}[{quote(name)}]: {quote(value)} has half a character, expected text that UTF-8 can carry"
    if size > TAGS_BYTES_MAX:
        return f"{path}: {size} bytes, expected at most {TAGS_BYTES_MAX}"
    return ""
