"""Errors of one item in itself, and of its fields. Pure.

Each check returns the first problem, or None. admission.py says which items there are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message
from muster_proto.si.v1 import si_pb2
from muster_si.characters import code_point, first_hidden
from muster_si.tags import is_forced

from muster_gateway.bounded_messages import Counted
from muster_gateway.errors import quote
from muster_gateway.settings import AdmissionLimits

# Characters that break a log line or a terminal: controls, lone surrogates, line and paragraph separators.
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_VALID_ACTIONS = frozenset(si_pb2.NodeInfo.ActionFromRM.values()) - {si_pb2.NodeInfo.UNKNOWN_ACTION_FROM_RM}
# Protobuf writes both parts of a map's entry, so that it makes an item larger than it was: at most by this factor.
_WRITTEN_MAX = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an item before it is judged.

    :param may_be_large: it can be over a limit of bytes. If not (the usual case), it is not measured.
    :param over: the entries of its maps and lists that are over their limit and were not built, by their path.
    """

    may_be_large: bool
    over: Mapping[str, int] = field(default_factory=dict)


Check = Callable[[Any, str, AdmissionLimits, Facts], str | None]


# ---- one item ----------------------------------------------------------------------------------------------------


def ask_problem(ask: si_pb2.AllocationAsk, path: str, limits: AdmissionLimits, facts: Facts) -> str | None:
    return (
        new_name_problem(ask.allocationKey, f"{path}.allocationKey", limits.max_id_chars)
        or text_problem(ask.applicationID, f"{path}.applicationID", limits.max_id_chars)
        or text_problem(ask.partitionName, f"{path}.partitionName", limits.max_id_chars)
        or text_problem(ask.taskGroupName, f"{path}.taskGroupName", limits.max_id_chars)
        or _resource_problem(ask.resourceAsk, f"{path}.resourceAsk", limits, facts, some=True)
        or _repeats_problem(ask.maxAllocations, f"{path}.maxAllocations", limits)
        or _timeout_problem(ask.executionTimeoutMilliSeconds, f"{path}.executionTimeoutMilliSeconds", limits)
        or tags_problem(ask.tags, f"{path}.tags", limits, facts)
        or (_size_problem(ask, path, limits) if facts.may_be_large else None)
    )


def allocation_problem(item: si_pb2.Allocation, path: str, limits: AdmissionLimits, facts: Facts) -> str | None:
    """Returns the problem of an ask, or of an existing allocation. Foreign and independent ones belong to no
    application. An existing one runs already, so that its key may be any that earlier versions took.
    """
    key_problem = name_problem if item.nodeID else new_name_problem
    return (
        key_problem(item.allocationKey, f"{path}.allocationKey", limits.max_id_chars)
        or text_problem(item.applicationID, f"{path}.applicationID", limits.max_id_chars)
        or text_problem(item.nodeID, f"{path}.nodeID", limits.max_id_chars)
        or text_problem(item.UUID, f"{path}.UUID", limits.max_id_chars)
        or text_problem(item.partitionName, f"{path}.partitionName", limits.max_id_chars)
        or text_problem(item.taskGroupName, f"{path}.taskGroupName", limits.max_id_chars)
        or _resource_problem(item.resourcePerAlloc, f"{path}.resourcePerAlloc", limits, facts, some=True)
        or tags_problem(item.allocationTags, f"{path}.allocationTags", limits, facts)
        or (_size_problem(item, path, limits) if facts.may_be_large else None)
    )


def release_problem(
    release: si_pb2.AllocationRelease | si_pb2.AllocationAskRelease,
    path: str,
    limits: AdmissionLimits,
    _facts: Facts,
) -> str | None:
    problem = (
        text_problem(release.allocationKey, f"{path}.allocationKey", limits.max_id_chars)
        or text_problem(release.applicationID, f"{path}.applicationID", limits.max_id_chars)
        or text_problem(release.partitionName, f"{path}.partitionName", limits.max_id_chars)
        or text_problem(getattr(release, "UUID", ""), f"{path}.UUID", limits.max_id_chars)
    )
    if problem:
        return problem
    if not release.allocationKey and not release.applicationID and not getattr(release, "UUID", ""):
        return f"{path}: neither allocationKey nor applicationID is set, expected at least one"
    return None


def application_problem(
    item: si_pb2.AddApplicationRequest, path: str, limits: AdmissionLimits, facts: Facts
) -> str | None:
    """Returns an application's problem. A forced application already runs, so its queue and user are accepted in any
    form, and its id may have characters that a new one may not.
    """
    id_problem = name_problem if is_forced(item.tags) else new_name_problem
    return (
        id_problem(item.applicationID, f"{path}.applicationID", limits.max_id_chars)
        or text_problem(item.partitionName, f"{path}.partitionName", limits.max_id_chars)
        or (None if is_forced(item.tags) else _placement_problem(item, path, limits, facts))
        or _timeout_problem(item.executionTimeoutMilliSeconds, f"{path}.executionTimeoutMilliSeconds", limits)
        or _resource_problem(item.placeholderAsk, f"{path}.placeholderAsk", limits, facts, some=False)
        or tags_problem(item.tags, f"{path}.tags", limits, facts)
        or (_size_problem(item, path, limits) if facts.may_be_large else None)
    )


def _placement_problem(
    item: si_pb2.AddApplicationRequest, path: str, limits: AdmissionLimits, facts: Facts
) -> str | None:
    return (
        text_problem(item.queueName, f"{path}.queueName", limits.max_queue_chars)
        or hidden_problem(item.queueName, f"{path}.queueName")
        or text_problem(item.gangSchedulingStyle, f"{path}.gangSchedulingStyle", limits.max_id_chars)
        or _user_problem(item.ugi, f"{path}.ugi", limits, facts)
    )


def removal_problem(
    item: si_pb2.RemoveApplicationRequest, path: str, limits: AdmissionLimits, _facts: Facts
) -> str | None:
    return name_problem(item.applicationID, f"{path}.applicationID", limits.max_id_chars) or text_problem(
        item.partitionName, f"{path}.partitionName", limits.max_id_chars
    )


def _user_problem(ugi: si_pb2.UserGroupInformation, path: str, limits: AdmissionLimits, facts: Facts) -> str | None:
    problem = text_problem(ugi.user, f"{path}.user", limits.max_id_chars) or hidden_problem(ugi.user, f"{path}.user")
    if problem:
        return problem
    count = facts.over.get(f"{path}.groups", 0) or len(ugi.groups)
    if count > limits.max_groups:
        return f"{path}.groups: {count} groups, expected at most {limits.max_groups}"
    for group in ugi.groups:
        if problem := new_name_problem(group, f"{path}.groups", limits.max_id_chars):
            return problem
    return None


def node_problem(node: si_pb2.NodeInfo, path: str, limits: AdmissionLimits, facts: Facts) -> str | None:
    """Returns the problem of a node without its existing allocations."""
    problem = new_name_problem(node.nodeID, f"{path}.nodeID", limits.max_id_chars)
    if problem:
        return problem
    if node.action not in _VALID_ACTIONS:
        return f"{path}.action: {node.action}, expected one of {sorted(_VALID_ACTIONS)}"
    return (
        _resource_problem(node.schedulableResource, f"{path}.schedulableResource", limits, facts, some=False)
        or _resource_problem(node.occupiedResource, f"{path}.occupiedResource", limits, facts, some=False)
        or tags_problem(node.attributes, f"{path}.attributes", limits, facts)
        or (_size_problem(node, path, limits) if facts.may_be_large else None)
    )


# ---- one field ---------------------------------------------------------------------------------------------------


def new_name_problem(value: str, path: str, limit: int) -> str | None:
    """Returns the problem of a required name that the item gives to something new.

    (A name that only refers to something is judged by :func:`name_problem`: what has it may be older, or be forced.)
    """
    return name_problem(value, path, limit) or hidden_problem(value, path)


def hidden_problem(value: str, path: str) -> str | None:
    """Returns the problem of a name with invisible characters, or with characters that reorder the shown text."""
    if value.isascii():
        return None  # text_problem refuses controls
    character = first_hidden(value)
    if character is None:
        return None
    return f"{path}: {quote(value)} has {code_point(character)}, expected visible characters"


def name_problem(value: str, path: str, limit: int) -> str | None:
    """Returns the problem of a required text."""
    if value and len(value) <= limit and value.isprintable():
        return None
    if not value:
        return f"{path}: empty, expected 1 to {limit} characters"
    return text_problem(value, path, limit)


def text_problem(value: str, path: str, limit: int) -> str | None:
    """Returns the problem of a text that may be empty."""
    if len(value) <= limit and value.isprintable():
        return None
    if len(value) > limit:
        return f"{path}: {quote(value)}, expected at most {limit} characters"
    if any(unicodedata.category(character) in _FORBIDDEN_CATEGORIES for character in value):
        return f"{path}: {quote(value)}, expected no control characters"
    return None


def _resource_problem(
    resource: si_pb2.Resource, path: str, limits: AdmissionLimits, facts: Facts, *, some: bool
) -> str | None:
    """Returns the problem of a resource. With ``some``, at least one quantity must be positive."""
    quantities = resource.resources
    count = facts.over.get(path, 0) or len(quantities)
    if count > limits.max_resource_types:
        return f"{path}: {count} types, expected at most {limits.max_resource_types}"
    positive = not some
    for name, quantity in quantities.items():
        value = quantity.value
        if problem := new_name_problem(name, f"{path}, name of a type", limits.max_id_chars):
            return problem
        if value < 0:
            return f"{path}[{quote(name)}]: {value}, expected no negative quantity"
        if value > limits.max_quantity:
            return f"{path}[{quote(name)}]: {value}, expected at most {limits.max_quantity}"
        if value:
            positive = True
    if not positive:
        return f"{path}: {'all zero' if len(quantities) else 'empty'}, expected at least one positive quantity"
    return None


def tags_problem(tags: Mapping[str, str], path: str, limits: AdmissionLimits, facts: Facts) -> str | None:
    count = facts.over.get(path, 0) or len(tags)
    if count > limits.max_tags:
        return f"{path}: {count} entries, expected at most {limits.max_tags}"
    if facts.may_be_large:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in tags.items())
        if size > limits.max_tags_bytes:
            return f"{path}: {size} bytes, expected at most {limits.max_tags_bytes}"
    return None


def _repeats_problem(value: int, path: str, limits: AdmissionLimits) -> str | None:
    """Returns the problem of a repeat count. 0 is an unset field and means one."""
    if 0 <= value <= limits.max_repeats:
        return None
    return f"{path}: {value}, expected 0 to {limits.max_repeats}"


def _timeout_problem(value: int, path: str, limits: AdmissionLimits) -> str | None:
    if value <= limits.max_timeout_ms:
        return None
    return f"{path}: {value}, expected at most {limits.max_timeout_ms} ms (0 or less: never)"


def _size_problem(item: Message, path: str, limits: AdmissionLimits) -> str | None:
    size, limit = item.ByteSize(), _max_item_bytes(limits)
    return None if size <= limit else f"{path}: {size} bytes, expected at most {limit}"


def _max_item_bytes(limits: AdmissionLimits) -> int:
    # Leaves room for the message's other fields: the rmID and lengths.
    return limits.max_record_bytes - 4 * limits.max_id_chars - 64


def may_be_large(size: int, limits: AdmissionLimits) -> bool:
    """Tells whether an item that takes so many bytes of a message can be over a limit of bytes."""
    return _WRITTEN_MAX * size > min(limits.max_tags_bytes, _max_item_bytes(limits))


# ---- what must not be too many --------------------------------------------------------------------------------


def _tags(name: str, limits: AdmissionLimits) -> Counted:
    return Counted((name,), limits.max_tags, name)


def _types(name: str, limits: AdmissionLimits) -> Counted:
    return Counted((name, "resources"), limits.max_resource_types, name)


def ask_counted(limits: AdmissionLimits) -> tuple[Counted, ...]:
    return _tags("tags", limits), _types("resourceAsk", limits)


def allocation_counted(limits: AdmissionLimits) -> tuple[Counted, ...]:
    return _tags("allocationTags", limits), _types("resourcePerAlloc", limits)


def application_counted(limits: AdmissionLimits) -> tuple[Counted, ...]:
    groups = Counted(("ugi", "groups"), limits.max_groups, "ugi.groups")
    return _tags("tags", limits), _types("placeholderAsk", limits), groups


def node_counted(limits: AdmissionLimits) -> tuple[Counted, ...]:
    return _tags("attributes", limits), _types("schedulableResource", limits), _types("occupiedResource", limits)


def nothing_counted(_limits: AdmissionLimits) -> tuple[Counted, ...]:
    return ()
