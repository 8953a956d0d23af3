"""Admission: rejects invalid items and messages at once, before they reach the log. Pure.

An *item* is one element of a repeated field (an ask, an allocation, a release, an application, a node). The gateway
answers a bad item on the item's stream with the SI's rejection, in the item's generation; the other items go on. A
message that belongs to no RM (no protobuf, another rmID, over a limit as a whole) raises and ends its stream.

Each item is judged by itself: the other items of its message make no difference. Only the limits on items and bytes
count for the whole message, because they are limits of the transport. The scheduler judges everything else: whether a
node, application, partition or queue exists, whether a user is given, what a release without applicationID means, and
what a repeated id means. Admission also accepts an unknown terminationType of a newer interface: the release then ends
its allocation like one of type UNKNOWN.

item                                     answer
AllocationRequest.asks (previous)        RejectedAllocationAsk in ``rejected``
AllocationRequest.allocations            RejectedAllocation in ``rejectedAllocations``
releases.allocationsToRelease            RejectedAllocation in ``rejectedAllocations`` (SI has no better message)
releases.allocationAsksToRelease (prev.) RejectedAllocationAsk in ``rejected``
ApplicationRequest.new, .remove          RejectedApplication
NodeRequest.nodes                        RejectedNode (a bad existing allocation in a node condemns the node)
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from muster_proto.si.v1 import si_pb2
from muster_si.characters import code_point, first_hidden
from muster_si.tags import is_forced

from muster_gateway.errors import InvalidRequest, OverLimit, shown
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind

Request = si_pb2.AllocationRequest | si_pb2.ApplicationRequest | si_pb2.NodeRequest
Check = Callable[[Any, str, AdmissionLimits], str | None]
T = TypeVar("T")
Steps = Generator[None, None, T]
# Items that one step checks: some 3 ms.
_ITEMS_STEP = 256

REQUEST_TYPES: dict[StreamKind, type[Request]] = {
    StreamKind.ALLOCATION: si_pb2.AllocationRequest,
    StreamKind.APPLICATION: si_pb2.ApplicationRequest,
    StreamKind.NODE: si_pb2.NodeRequest,
}

# A rejection repeats the item's id, so that the RM recognises the item. This much of an over-long id is enough.
_ECHO_CHARS = 4_096
# Characters that break a log line or a terminal: controls, lone surrogates, line and paragraph separators.
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_KNOWN_ACTIONS = frozenset(si_pb2.NodeInfo.ActionFromRM.values()) - {si_pb2.NodeInfo.UNKNOWN_ACTION_FROM_RM}


@dataclass(slots=True)
class Admitted:
    """The rest of a request after admission.

    :param payloads: for the log, in order: nothing, the bytes as received, or several parts of a message that is too
        large for one record.
    :param answer: the rejections as a serialised SI response; ``None`` if there are none.
    :param items: number of items in the message.
    :param rejected: number of items that ``answer`` rejects.
    """

    payloads: list[bytes]
    answer: bytes | None
    items: int
    rejected: int


def rm_id_of(kind: StreamKind, raw: bytes, limits: AdmissionLimits) -> str:
    """Returns the rmID in a stream's first message. Raises InvalidRequest."""
    rm_id: str = parsed(REQUEST_TYPES[kind], raw).rmID
    check_rm_id(rm_id, limits)
    return rm_id


def check_rm_id(rm_id: str, limits: AdmissionLimits, field: str = "rmID") -> None:
    """Raises InvalidRequest if ``rm_id`` cannot name an RM."""
    if problem := new_name_problem(rm_id, field, limits.max_id_chars):
        raise InvalidRequest(problem)
    if not rm_id.strip():
        raise InvalidRequest(f"{field}: {shown(rm_id)}, expected more than blanks")


def admit(kind: StreamKind, raw: bytes, rm_id: str, limits: AdmissionLimits) -> Admitted:
    """Judges one message of a stream that belongs to ``rm_id``. Raises InvalidRequest, OverLimit."""
    steps = admission_steps(kind, raw, rm_id, limits)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            admitted: Admitted = end.value
            return admitted


def admission_steps(kind: StreamKind, raw: bytes, rm_id: str, limits: AdmissionLimits) -> Steps[Admitted]:
    """Does the same in steps of a few milliseconds: other tasks can run between them. A small message is one step."""
    message = parsed(REQUEST_TYPES[kind], raw)
    if message.rmID != rm_id:
        raise InvalidRequest(f"rmID: {shown(message.rmID)}, expected {shown(rm_id)}: a stream belongs to one RM")
    return (yield from _ADMIT[kind](message, raw, limits))


def admit_registration(raw: bytes, limits: AdmissionLimits) -> tuple[str, str]:
    """Judges a registration. Returns its rmID and its configuration, which others judge.

    Raises InvalidRequest, OverLimit.
    """
    request = parsed(si_pb2.RegisterResourceManagerRequest, raw)
    return _admit_configured(
        "registration", request, raw, limits, ("version", "policyGroup"), ("buildInfo", "extraConfig")
    )


def admit_configuration(raw: bytes, limits: AdmissionLimits) -> tuple[str, str]:
    """Judges a configuration update in the same way. Raises InvalidRequest, OverLimit."""
    request = parsed(si_pb2.UpdateConfigurationRequest, raw)
    return _admit_configured("configuration update", request, raw, limits, ("policyGroup",), ("extraConfig",))


def _admit_configured(
    what: str, request: Any, raw: bytes, limits: AdmissionLimits, texts: tuple[str, ...], maps: tuple[str, ...]
) -> tuple[str, str]:
    check_rm_id(request.rmID, limits)
    for field in texts:
        if problem := text_problem(getattr(request, field), field, limits.max_id_chars):
            raise InvalidRequest(problem)
    for field in maps:
        if problem := _tags_problem(getattr(request, field), field, limits, measure=True):
            raise InvalidRequest(problem)
    if len(raw) > limits.max_record_bytes:
        raise OverLimit(
            f"{what}: {len(raw)} bytes (config: {len(request.config)} characters), "
            f"expected at most {limits.max_record_bytes} bytes"
        )
    return request.rmID, request.config


# ---- the three kinds of messages ---------------------------------------------------------------------------------


def _admit_allocation(message: si_pb2.AllocationRequest, raw: bytes, limits: AdmissionLimits) -> Steps[Admitted]:
    releases = message.releases
    count = (
        len(message.asks)
        + len(message.allocations)
        + len(releases.allocationsToRelease)
        + len(releases.allocationAsksToRelease)
    )
    _check_count("AllocationRequest", count, limits)
    answer = si_pb2.AllocationResponse()

    def ask(item: si_pb2.AllocationAsk, path: str, limits: AdmissionLimits) -> str | None:
        return _ask_problem(item, path, limits, measure)

    def allocation(item: si_pb2.Allocation, path: str, limits: AdmissionLimits) -> str | None:
        return _allocation_problem(item, path, limits, measure)

    measure = _may_be_large(raw, limits)
    bad = _Bad()
    if message.HasField("releases"):
        path = "releases.allocationsToRelease"
        yield from bad.find(releases.allocationsToRelease, path, _release_problem, limits)
        bad.answer_asks(answer.rejectedAllocations)
        yield from bad.find(
            releases.allocationAsksToRelease, "releases.allocationAsksToRelease", _release_problem, limits
        )
        bad.answer_asks(answer.rejected)
    yield from bad.find(message.allocations, "allocations", allocation, limits)
    bad.answer_asks(answer.rejectedAllocations)
    yield from bad.find(message.asks, "asks", ask, limits)
    bad.answer_asks(answer.rejected)
    return (yield from bad.admitted(message, raw, answer, count, limits))


def _admit_application(message: si_pb2.ApplicationRequest, raw: bytes, limits: AdmissionLimits) -> Steps[Admitted]:
    count = len(message.new) + len(message.remove)
    _check_count("ApplicationRequest", count, limits)
    answer = si_pb2.ApplicationResponse()
    measure = _may_be_large(raw, limits)

    def application(item: si_pb2.AddApplicationRequest, path: str, limits: AdmissionLimits) -> str | None:
        return _application_problem(item, path, limits, measure)

    bad = _Bad()
    yield from bad.find(message.new, "new", application, limits)
    bad.answer_applications(answer.rejected)
    yield from bad.find(message.remove, "remove", _removal_problem, limits)
    bad.answer_applications(answer.rejected)
    return (yield from bad.admitted(message, raw, answer, count, limits))


def _admit_node(message: si_pb2.NodeRequest, raw: bytes, limits: AdmissionLimits) -> Steps[Admitted]:
    count = len(message.nodes)
    _check_count("NodeRequest", count + sum(len(node.existingAllocations) for node in message.nodes), limits)
    answer = si_pb2.NodeResponse()
    measure = _may_be_large(raw, limits)

    def node(item: si_pb2.NodeInfo, path: str, limits: AdmissionLimits) -> str | None:
        return _node_problem(item, path, limits, measure)

    bad = _Bad()
    yield from bad.find(message.nodes, "nodes", node, limits)
    bad.answer_nodes(answer.rejected)
    return (yield from bad.admitted(message, raw, answer, count, limits))


_ADMIT: dict[StreamKind, Callable[[Any, bytes, AdmissionLimits], Steps[Admitted]]] = {
    StreamKind.ALLOCATION: _admit_allocation,
    StreamKind.APPLICATION: _admit_application,
    StreamKind.NODE: _admit_node,
}


class _Bad:
    """The bad items of one message. Finds them in each list, answers them, and leaves them out of the payloads."""

    def __init__(self) -> None:
        self._dropped: list[tuple[Sequence[Any], frozenset[int]]] = []
        self._last: list[tuple[Any, str]] = []
        self.count = 0

    def find(self, items: Sequence[Any], name: str, check: Check, limits: AdmissionLimits) -> Steps[None]:
        self._last = []
        indexes = []
        for index, item in enumerate(items):
            if index and index % _ITEMS_STEP == 0:
                yield
            problem = check(item, name, limits)
            if problem is not None:
                indexes.append(index)
                self._last.append((item, problem.replace(name, f"{name}[{index}]", 1)))
        if indexes:
            self._dropped.append((items, frozenset(indexes)))
            self.count += len(indexes)

    def answer_asks(self, rejected: Any) -> None:
        for item, reason in self._last:
            rejected.add(
                allocationKey=item.allocationKey[:_ECHO_CHARS],
                applicationID=item.applicationID[:_ECHO_CHARS],
                reason=reason,
            )

    def answer_applications(self, rejected: Any) -> None:
        for item, reason in self._last:
            rejected.add(applicationID=item.applicationID[:_ECHO_CHARS], reason=reason)

    def answer_nodes(self, rejected: Any) -> None:
        for item, reason in self._last:
            rejected.add(nodeID=item.nodeID[:_ECHO_CHARS], reason=reason)

    def admitted(
        self, message: Request, raw: bytes, answer: Message, items: int, limits: AdmissionLimits
    ) -> Steps[Admitted]:
        payloads: list[bytes] = []
        if not self.count and 0 < items <= limits.record_items and len(raw) <= limits.record_bytes:
            payloads = [raw]
        elif items > self.count:
            dropped = {id(container): indexes for container, indexes in self._dropped}
            payloads = yield from split_steps(message, limits.record_bytes, limits.record_items, dropped)
        return Admitted(payloads, answer.SerializeToString() if self.count else None, items, self.count)


# ---- one item ----------------------------------------------------------------------------------------------------


def _ask_problem(ask: si_pb2.AllocationAsk, path: str, limits: AdmissionLimits, measure: bool) -> str | None:
    return (
        new_name_problem(ask.allocationKey, f"{path}.allocationKey", limits.max_id_chars)
        or text_problem(ask.applicationID, f"{path}.applicationID", limits.max_id_chars)
        or text_problem(ask.partitionName, f"{path}.partitionName", limits.max_id_chars)
        or text_problem(ask.taskGroupName, f"{path}.taskGroupName", limits.max_id_chars)
        or _resource_problem(ask.resourceAsk, f"{path}.resourceAsk", limits, some=True)
        or _repeats_problem(ask.maxAllocations, f"{path}.maxAllocations", limits)
        or _timeout_problem(ask.executionTimeoutMilliSeconds, f"{path}.executionTimeoutMilliSeconds", limits)
        or _tags_problem(ask.tags, f"{path}.tags", limits, measure)
        or (_size_problem(ask, path, limits) if measure else None)
    )


def _allocation_problem(item: si_pb2.Allocation, path: str, limits: AdmissionLimits, measure: bool) -> str | None:
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
        or _resource_problem(item.resourcePerAlloc, f"{path}.resourcePerAlloc", limits, some=True)
        or _tags_problem(item.allocationTags, f"{path}.allocationTags", limits, measure)
        or (_size_problem(item, path, limits) if measure else None)
    )


def _release_problem(
    release: si_pb2.AllocationRelease | si_pb2.AllocationAskRelease, path: str, limits: AdmissionLimits
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


def _application_problem(
    item: si_pb2.AddApplicationRequest, path: str, limits: AdmissionLimits, measure: bool
) -> str | None:
    """Returns an application's problem. A forced application already runs, so its queue and user are accepted in any
    form, and its id may have characters that a new one may not.
    """
    id_problem = name_problem if is_forced(item.tags) else new_name_problem
    return (
        id_problem(item.applicationID, f"{path}.applicationID", limits.max_id_chars)
        or text_problem(item.partitionName, f"{path}.partitionName", limits.max_id_chars)
        or (None if is_forced(item.tags) else _placement_problem(item, path, limits))
        or _timeout_problem(item.executionTimeoutMilliSeconds, f"{path}.executionTimeoutMilliSeconds", limits)
        or _resource_problem(item.placeholderAsk, f"{path}.placeholderAsk", limits, some=False)
        or _tags_problem(item.tags, f"{path}.tags", limits, measure)
        or (_size_problem(item, path, limits) if measure else None)
    )


def _placement_problem(item: si_pb2.AddApplicationRequest, path: str, limits: AdmissionLimits) -> str | None:
    return (
        text_problem(item.queueName, f"{path}.queueName", limits.max_queue_chars)
        or hidden_problem(item.queueName, f"{path}.queueName")
        or text_problem(item.gangSchedulingStyle, f"{path}.gangSchedulingStyle", limits.max_id_chars)
        or _user_problem(item.ugi, f"{path}.ugi", limits)
    )


def _removal_problem(item: si_pb2.RemoveApplicationRequest, path: str, limits: AdmissionLimits) -> str | None:
    return name_problem(item.applicationID, f"{path}.applicationID", limits.max_id_chars) or text_problem(
        item.partitionName, f"{path}.partitionName", limits.max_id_chars
    )


def _user_problem(ugi: si_pb2.UserGroupInformation, path: str, limits: AdmissionLimits) -> str | None:
    problem = text_problem(ugi.user, f"{path}.user", limits.max_id_chars) or hidden_problem(ugi.user, f"{path}.user")
    if problem:
        return problem
    if len(ugi.groups) > limits.max_groups:
        return f"{path}.groups: {len(ugi.groups)} groups, expected at most {limits.max_groups}"
    for group in ugi.groups:
        if problem := new_name_problem(group, f"{path}.groups", limits.max_id_chars):
            return problem
    return None


def _node_problem(node: si_pb2.NodeInfo, path: str, limits: AdmissionLimits, measure: bool) -> str | None:
    problem = new_name_problem(node.nodeID, f"{path}.nodeID", limits.max_id_chars)
    if problem:
        return problem
    if node.action not in _KNOWN_ACTIONS:
        return f"{path}.action: {node.action}, expected one of {sorted(_KNOWN_ACTIONS)}"
    problem = (
        _resource_problem(node.schedulableResource, f"{path}.schedulableResource", limits, some=False)
        or _resource_problem(node.occupiedResource, f"{path}.occupiedResource", limits, some=False)
        or _tags_problem(node.attributes, f"{path}.attributes", limits, measure)
        or (_size_problem(node, path, limits) if measure else None)
    )
    if problem:
        return problem
    for index, allocation in enumerate(node.existingAllocations):
        if problem := _allocation_problem(allocation, f"{path}.existingAllocations[{index}]", limits, measure):
            return problem
    return None


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
    return f"{path}: {shown(value)} has {code_point(character)}, expected visible characters"


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
        return f"{path}: {shown(value)}, expected at most {limit} characters"
    if any(unicodedata.category(character) in _FORBIDDEN_CATEGORIES for character in value):
        return f"{path}: {shown(value)}, expected no control characters"
    return None


def _resource_problem(resource: si_pb2.Resource, path: str, limits: AdmissionLimits, *, some: bool) -> str | None:
    """Returns the problem of a resource. With ``some``, at least one quantity must be positive."""
    quantities = resource.resources
    if len(quantities) > limits.max_resource_types:
        return f"{path}: {len(quantities)} types, expected at most {limits.max_resource_types}"
    positive = not some
    for name, quantity in quantities.items():
        value = quantity.value
        if problem := new_name_problem(name, f"{path}, name of a type", limits.max_id_chars):
            return problem
        if value < 0:
            return f"{path}[{shown(name)}]: {value}, expected no negative quantity"
        if value > limits.max_quantity:
            return f"{path}[{shown(name)}]: {value}, expected at most {limits.max_quantity}"
        if value:
            positive = True
    if not positive:
        return f"{path}: {'all zero' if len(quantities) else 'empty'}, expected at least one positive quantity"
    return None


def _tags_problem(tags: Mapping[str, str], path: str, limits: AdmissionLimits, measure: bool) -> str | None:
    if len(tags) > limits.max_tags:
        return f"{path}: {len(tags)} entries, expected at most {limits.max_tags}"
    if measure:
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


def _may_be_large(raw: bytes, limits: AdmissionLimits) -> bool:
    """Tells whether an item of the message can be over a limit of bytes. If not (the usual case), no item is
    measured.
    """
    return len(raw) > min(limits.max_tags_bytes, _max_item_bytes(limits))


# ---- the whole message -------------------------------------------------------------------------------------------


def parsed(message_type: type[Any], raw: bytes) -> Any:
    """Parses the bytes as a message of the type. Raises InvalidRequest."""
    try:
        return message_type.FromString(raw)
    except DecodeError:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidRequest(f"{len(raw)} bytes that are no {name} (protobuf, UTF-8 texts)") from None


def _check_count(name: str, count: int, limits: AdmissionLimits) -> None:
    if count > limits.max_items:
        raise OverLimit(f"{name}: {count} items, expected at most {limits.max_items}")


def split(message: Request, max_bytes: int, max_items: int = 1_000_000) -> list[bytes]:
    """Splits a message into parts of at most so many bytes and items, in the order in which the scheduler takes the
    items.

    An item that is larger than that is a part of its own.
    """
    steps = split_steps(message, max_bytes, max_items, {})
    while True:
        try:
            next(steps)
        except StopIteration as end:
            parts: list[bytes] = end.value
            return parts


def split_steps(
    message: Request, max_bytes: int, max_items: int, dropped: Mapping[int, Collection[int]]
) -> Steps[list[bytes]]:
    """Does the same in steps. Leaves out the items with the indexes ``dropped``, by the id of their list."""
    parts: list[bytes] = []
    part = type(message)(rmID=message.rmID)
    empty_bytes = size = part.ByteSize() + _LIST_BYTES
    least_bytes = (max_bytes - empty_bytes) // max_items  # so many items of this size fit into a part
    for items, field_of in _item_lists(message):
        left_out = dropped.get(id(items), ())
        taken: list[Any] = []
        for index, item in enumerate(items):
            if index and index % _ITEMS_STEP == 0:
                yield
            if index in left_out:
                continue
            item_bytes = max(least_bytes, item.ByteSize() + _ITEM_BYTES)
            if size + item_bytes > max_bytes and size > empty_bytes:
                field_of(part).extend(taken)
                parts.append(part.SerializeToString())
                part, taken, size = type(message)(rmID=message.rmID), [], empty_bytes
            taken.append(item)
            size += item_bytes
        if taken:
            field_of(part).extend(taken)
    if size > empty_bytes:
        parts.append(part.SerializeToString())
    return parts


# Upper bounds of the framing: of an item (its tag and length), and of the message with the releases.
_ITEM_BYTES, _LIST_BYTES = 6, 6


def _item_lists(message: Request) -> list[tuple[Any, Callable[[Any], Any]]]:
    """Returns a message's lists in the order in which the scheduler takes them, each with a getter for another message.

    (muster_core.model.commands defines the order; a test compares the two.)
    """
    if isinstance(message, si_pb2.AllocationRequest):
        return [
            (message.releases.allocationsToRelease, lambda m: m.releases.allocationsToRelease),
            (message.releases.allocationAsksToRelease, lambda m: m.releases.allocationAsksToRelease),
            (message.allocations, lambda m: m.allocations),
            (message.asks, lambda m: m.asks),
        ]
    if isinstance(message, si_pb2.ApplicationRequest):
        return [(message.new, lambda m: m.new), (message.remove, lambda m: m.remove)]
    return [(message.nodes, lambda m: m.nodes)]
