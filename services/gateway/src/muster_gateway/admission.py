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

A small message without bad items is parsed as a whole and stays as received. Any other one is counted first
(item_lists.py), then parsed and judged some items at a time, and cut into records between its items.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from muster_proto.si.v1 import si_pb2

from muster_gateway.bounded_messages import SIZES, Bounded, Counted, Place, StepSizes, bounded_steps
from muster_gateway.errors import InvalidRequest, OverLimit, quote
from muster_gateway.item_checks import (
    Check,
    Facts,
    allocation_counted,
    allocation_problem,
    application_counted,
    application_problem,
    ask_counted,
    ask_problem,
    may_be_large,
    new_name_problem,
    node_counted,
    node_problem,
    nothing_counted,
    release_problem,
    removal_problem,
    tags_problem,
    text_problem,
)
from muster_gateway.item_lists import ItemList, Layout, Span, chunks, joined, layout_steps, no_message, too_many
from muster_gateway.record_parts import RecordParts
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind

Request = si_pb2.AllocationRequest | si_pb2.ApplicationRequest | si_pb2.NodeRequest
T = TypeVar("T")
Steps = Generator[None, None, T]
# Work that one step does in an item with existing allocations: some 1 ms.
_WORK_STEP = 64

REQUEST_TYPES: dict[StreamKind, type[Request]] = {
    StreamKind.ALLOCATION: si_pb2.AllocationRequest,
    StreamKind.APPLICATION: si_pb2.ApplicationRequest,
    StreamKind.NODE: si_pb2.NodeRequest,
}

# A rejection repeats the item's id, so that the RM recognises the item. This much of an over-long id is enough.
_ECHO_CHARS = 4_096
# An answer with more rejections, or with longer ones, becomes several.
_ANSWER_ITEMS, _ANSWER_CHARS = 500, 128 * 1024


# Of items that are parsed as a whole.
_SMALL, _LARGE = Facts(may_be_large=False), Facts(may_be_large=True)


@dataclass(slots=True)
class AdmittedMessage:
    """The rest of a request after admission.

    :param payloads: for the log, in order: nothing, the bytes as received, or several parts of a message that is too
        large for one record.
    :param answers: the rejections as serialised SI responses; empty if there are none.
    :param items: number of items in the message.
    :param rejected: number of items that ``answers`` reject.
    """

    payloads: list[bytes]
    answers: list[bytes]
    items: int
    rejected: int


@dataclass(frozen=True, slots=True)
class JudgedList:
    """A list of items, with what admission does to them.

    :param items: where they are.
    :param check: returns an item's problem.
    :param rejections: returns the list of an answer that rejects them.
    :param echo: the fields that a rejection repeats.
    :param counted: what an item must not have too much of.
    """

    items: ItemList
    check: Check
    rejections: Callable[[Any], Any]
    echo: tuple[str, ...]
    counted: Callable[[AdmissionLimits], tuple[Counted, ...]]


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One kind of message.

    :param lists: in the order in which the scheduler takes them (muster_core.model.commands; a test compares the two).
    :param name_tag: of the field rmID.
    """

    message: type[Any]
    answer: type[Any]
    name_tag: int
    lists: tuple[JudgedList, ...]


def rm_id_steps(kind: StreamKind, raw: bytes, limits: AdmissionLimits, sizes: StepSizes = SIZES) -> Steps[str]:
    """Returns the rmID in a stream's first message, in steps. Raises InvalidRequest, OverLimit."""
    if len(raw) <= sizes.whole_bytes:
        rm_id: str = parsed(REQUEST_TYPES[kind], raw).rmID
    else:
        rm_id = (yield from _layout(KINDS[kind], raw, limits, sizes)).remainder.rmID
    check_rm_id(rm_id, limits)
    return rm_id


def check_rm_id(rm_id: str, limits: AdmissionLimits, field: str = "rmID") -> None:
    """Raises InvalidRequest if ``rm_id`` cannot name an RM."""
    if problem := new_name_problem(rm_id, field, limits.max_id_chars):
        raise InvalidRequest(problem)
    if not rm_id.strip():
        raise InvalidRequest(f"{field}: {quote(rm_id)}, expected more than blanks")


def admission_steps(
    kind: StreamKind, raw: bytes, rm_id: str, limits: AdmissionLimits, sizes: StepSizes = SIZES
) -> Steps[AdmittedMessage]:
    """Judges one message of a stream that belongs to ``rm_id``, in steps of a millisecond: other tasks can run between
    them. A small message is one step. Raises InvalidRequest, OverLimit.
    """
    of = KINDS[kind]
    if len(raw) <= min(sizes.whole_bytes, limits.record_bytes):
        message = parsed(of.message, raw)
        _check_rm(message.rmID, rm_id)
        if (admitted := _admitted_whole(of, message, raw, limits)) is not None:
            return admitted
    layout = yield from _layout(of, raw, limits, sizes)
    _check_rm(layout.remainder.rmID, rm_id)
    judgement = _Judgement(of, raw, rm_id, limits, sizes)
    return (yield from judgement.steps(layout))


def _check_rm(rm_id: str, expected: str) -> None:
    if rm_id != expected:
        raise InvalidRequest(f"rmID: {quote(rm_id)}, expected {quote(expected)}: a stream belongs to one RM")


def registration_steps(raw: bytes, limits: AdmissionLimits, sizes: StepSizes = SIZES) -> Steps[tuple[str, str, bytes]]:
    """Judges a registration, in steps. Returns its rmID, its configuration, which others judge, and its bytes for the
    log.

    Raises InvalidRequest, OverLimit.
    """
    texts, maps = ("version", "policyGroup"), ("buildInfo", "extraConfig")
    message = si_pb2.RegisterResourceManagerRequest
    return (yield from _configured("registration", message, raw, limits, texts, maps, sizes))


def configuration_steps(raw: bytes, limits: AdmissionLimits, sizes: StepSizes = SIZES) -> Steps[tuple[str, str, bytes]]:
    """Judges a configuration update in the same way. Raises InvalidRequest, OverLimit."""
    message = si_pb2.UpdateConfigurationRequest
    texts, maps = ("policyGroup",), ("extraConfig",)
    return (yield from _configured("configuration update", message, raw, limits, texts, maps, sizes))


def _configured(
    subject: str,
    message_type: type[Any],
    raw: bytes,
    limits: AdmissionLimits,
    texts: tuple[str, ...],
    maps: tuple[str, ...],
    sizes: StepSizes,
) -> Steps[tuple[str, str, bytes]]:
    counted = [Counted((name,), limits.max_tags, name) for name in maps]
    bounded = yield from parsed_steps(message_type, raw, counted, sizes)
    request, facts = bounded.message, Facts(may_be_large=True, over=bounded.over)
    check_rm_id(request.rmID, limits)
    for name in texts:
        if problem := text_problem(getattr(request, name), name, limits.max_id_chars):
            raise InvalidRequest(problem)
    for name in maps:
        if problem := tags_problem(getattr(request, name), name, limits, facts):
            raise InvalidRequest(problem)
    if len(raw) > limits.max_record_bytes:
        raise OverLimit(
            f"{subject}: {len(raw)} bytes (config: {len(request.config)} characters), "
            f"expected at most {limits.max_record_bytes} bytes"
        )
    # What was parsed in steps is written anew, without what protobuf replaces: the scheduler parses it at once.
    return request.rmID, request.config, raw if len(raw) <= sizes.whole_bytes else request.SerializeToString()


# ---- one message -------------------------------------------------------------------------------------------------


def _admitted_whole(of: RequestKind, message: Any, raw: bytes, limits: AdmissionLimits) -> AdmittedMessage | None:
    """Judges a small message. None: some item is bad, or they are too many for a record or at all."""
    count = existing = 0
    judged: list[tuple[JudgedList, Any]] = []
    for judged_list in of.lists:
        items = judged_list.items.items(message)
        if size := len(items):
            judged.append((judged_list, items))
            count += size
    if of.message is si_pb2.NodeRequest:
        existing = _existing_in(message.nodes)
    if count > limits.record_items or count + existing > limits.max_items:
        return None
    facts = _LARGE if may_be_large(len(raw), limits) else _SMALL
    for judged_list, items in judged:
        name, check = judged_list.items.name, judged_list.check
        for item in items:
            if check(item, name, limits, facts) is not None:
                return None
    for item in message.nodes if existing else ():
        for index, allocation in enumerate(item.existingAllocations):
            if allocation_problem(allocation, f"nodes.existingAllocations[{index}]", limits, facts):
                return None
    return AdmittedMessage([raw] if count else [], [], count, 0)


def _layout(of: RequestKind, raw: bytes, limits: AdmissionLimits, sizes: StepSizes) -> Steps[Layout]:
    return (
        yield from layout_steps(
            of.message, raw, [judged_list.items for judged_list in of.lists], limits.max_items, sizes
        )
    )


class _Judgement:
    """Parses and judges the items of one message, some at a time."""

    def __init__(self, of: RequestKind, raw: bytes, rm_id: str, limits: AdmissionLimits, sizes: StepSizes) -> None:
        self._of, self._raw, self._limits, self._sizes = of, raw, limits, sizes
        self._records = RecordParts(raw, of.name_tag, rm_id, limits.record_bytes, limits.record_items)
        self._answers = _Answers(of.answer)
        self._existing = 0
        self._count = 0

    def steps(self, layout: Layout) -> Steps[AdmittedMessage]:
        self._count = sum(len(spans) for spans in layout.spans)
        for judged_list, spans in zip(self._of.lists, layout.spans, strict=True):
            for first, after in chunks(spans, self._sizes):
                begin, _, end = spans[first]
                try:
                    if end - begin > self._sizes.large_bytes:
                        yield from self._large(judged_list, first, spans[first])
                    else:
                        yield from self._chunk(judged_list, spans, first, after)
                except DecodeError as error:
                    raise no_message(self._of.message, len(self._raw)) from error
                if after < len(spans) or judged_list is not self._of.lists[-1]:
                    yield
            spans.clear()  # (to free many at once takes milliseconds)
        rejected = self._answers.count
        return AdmittedMessage(self._records.all(), self._answers.all(), self._count, rejected)

    def _chunk(self, judged_list: JudgedList, spans: Sequence[Span], first: int, after: int) -> Steps[None]:
        """Judges small items."""
        limits, parts, parent = self._limits, self._records, judged_list.items.parent
        items = judged_list.items.parse(self._of.message, joined(self._raw, spans, first, after), after - first)
        nodes = self._of.message is si_pb2.NodeRequest
        if nodes:
            self._add_existing(_existing_in(items), exact=after == len(spans))
        check, name = judged_list.check, judged_list.items.name
        facts = Facts(may_be_large(spans[after - 1][2] - spans[first][0], limits))
        for index, item in enumerate(items, first):
            problem = check(item, name, limits, facts)
            if nodes and problem is None and len(item.existingAllocations):
                problem = yield from _existing_steps(item, limits, facts)
            begin, _, end = spans[index]
            if problem is None:
                parts.add(judged_list.items.tag, parent, begin, end)
            else:
                self._reject(judged_list, index, item, problem)

    def _large(self, judged_list: JudgedList, index: int, span: Span) -> Steps[None]:
        """Judges one large item."""
        limits, items = self._limits, judged_list.items
        _, body, end = span
        location, counted, lists = items.location(self._of.message), judged_list.counted(limits), {}
        if self._of.message is si_pb2.NodeRequest:
            most = limits.max_items - self._count - self._existing
            error = too_many(self._of.message, limits.max_items + 1, limits.max_items, exact=False)
            counted = (*counted, Counted(("existingAllocations",), most, "existingAllocations", error))
            lists = {"existingAllocations": allocation_counted(limits)}
        bounded: Bounded = yield from bounded_steps(self._raw, body, end, location, counted, self._sizes, lists)
        item = bounded.message
        yield
        over = {f"{items.name}.{shown}": count for shown, count in bounded.over.items()}
        facts = Facts(may_be_large(end - body, limits), over)
        if lists:
            self._add_existing(len(item.existingAllocations), exact=False)
        problem = judged_list.check(item, items.name, limits, facts)
        if lists and problem is None:
            problem = yield from _existing_steps(item, limits, facts)
        if problem is None:
            self._records.add_item(items.tag, items.parent, item.SerializeToString())
        else:
            self._reject(judged_list, index, item, problem)

    def _add_existing(self, count: int, *, exact: bool) -> None:
        self._existing += count
        if (total := self._count + self._existing) > self._limits.max_items:
            raise too_many(self._of.message, total, self._limits.max_items, exact=exact)

    def _reject(self, judged_list: JudgedList, index: int, item: Any, problem: str) -> None:
        name = judged_list.items.name
        self._answers.add(judged_list, item, problem.replace(name, f"{name}[{index}]", 1))


class _Answers:
    """The rejections of a message's items."""

    def __init__(self, message: type[Any]) -> None:
        self._type, self._message = message, message()
        self._done: list[bytes] = []
        self._items = self._chars = 0
        self.count = 0

    def add(self, judged_list: JudgedList, item: Any, reason: str) -> None:
        echo = {name: getattr(item, name)[:_ECHO_CHARS] for name in judged_list.echo}
        judged_list.rejections(self._message).add(reason=reason, **echo)
        self.count += 1
        self._items += 1
        self._chars += len(reason)
        for text in echo.values():
            self._chars += len(text)
        if self._items >= _ANSWER_ITEMS or self._chars >= _ANSWER_CHARS:
            self._finish()

    def _finish(self) -> None:
        self._done.append(self._message.SerializeToString())
        self._message, self._items, self._chars = self._type(), 0, 0

    def all(self) -> list[bytes]:
        """Returns the answers, serialised."""
        if self._items:
            self._finish()
        return self._done


def _existing_in(nodes: Any) -> int:
    count = 0
    for node in nodes:
        count += len(node.existingAllocations)
    return count


def _existing_steps(node: si_pb2.NodeInfo, limits: AdmissionLimits, facts: Facts) -> Steps[str | None]:
    """Returns the problem of a node's existing allocations."""
    work = 0
    for index, allocation in enumerate(node.existingAllocations):
        path = f"nodes.existingAllocations[{index}]"
        if problem := allocation_problem(allocation, path, limits, facts):
            return problem
        work += 1 + len(allocation.allocationTags) // 16 + len(allocation.resourcePerAlloc.resources) // 8
        if work >= _WORK_STEP:
            work = 0
            yield
    return None


# ---- the kinds of messages ---------------------------------------------------------------------------------------


_OF_ASKS = ("allocationKey", "applicationID")
_RELEASES_TAG = 0x12
KINDS: dict[StreamKind, RequestKind] = {
    StreamKind.ALLOCATION: RequestKind(
        si_pb2.AllocationRequest,
        si_pb2.AllocationResponse,
        0x1A,
        (
            JudgedList(
                ItemList(
                    "releases.allocationsToRelease", 0x0A, lambda m: m.releases.allocationsToRelease, _RELEASES_TAG
                ),
                release_problem,
                lambda answer: answer.rejectedAllocations,
                _OF_ASKS,
                nothing_counted,
            ),
            JudgedList(
                ItemList(
                    "releases.allocationAsksToRelease",
                    0x12,
                    lambda m: m.releases.allocationAsksToRelease,
                    _RELEASES_TAG,
                ),
                release_problem,
                lambda answer: answer.rejected,
                _OF_ASKS,
                nothing_counted,
            ),
            JudgedList(
                ItemList("allocations", 0x22, lambda m: m.allocations),
                allocation_problem,
                lambda answer: answer.rejectedAllocations,
                _OF_ASKS,
                allocation_counted,
            ),
            JudgedList(
                ItemList("asks", 0x0A, lambda m: m.asks),
                ask_problem,
                lambda answer: answer.rejected,
                _OF_ASKS,
                ask_counted,
            ),
        ),
    ),
    StreamKind.APPLICATION: RequestKind(
        si_pb2.ApplicationRequest,
        si_pb2.ApplicationResponse,
        0x1A,
        (
            JudgedList(
                ItemList("new", 0x0A, lambda m: m.new),
                application_problem,
                lambda answer: answer.rejected,
                ("applicationID",),
                application_counted,
            ),
            JudgedList(
                ItemList("remove", 0x12, lambda m: m.remove),
                removal_problem,
                lambda answer: answer.rejected,
                ("applicationID",),
                nothing_counted,
            ),
        ),
    ),
    StreamKind.NODE: RequestKind(
        si_pb2.NodeRequest,
        si_pb2.NodeResponse,
        0x12,
        (
            JudgedList(
                ItemList("nodes", 0x0A, lambda m: m.nodes),
                node_problem,
                lambda answer: answer.rejected,
                ("nodeID",),
                node_counted,
            ),
        ),
    ),
}


# ---- parsing -----------------------------------------------------------------------------------------------------


def parsed(message_type: type[Any], raw: bytes) -> Any:
    """Parses the bytes as a message of the type. Raises InvalidRequest."""
    try:
        return message_type.FromString(raw)
    except DecodeError:
        raise no_message(message_type, len(raw)) from None


def parsed_steps(
    message_type: type[Any], raw: bytes, counted: Sequence[Counted], sizes: StepSizes = SIZES
) -> Steps[Bounded]:
    """Does the same in steps. A small message is one step. Raises InvalidRequest."""
    if len(raw) <= sizes.whole_bytes:
        return Bounded(parsed(message_type, raw))
    try:
        return (yield from bounded_steps(raw, 0, len(raw), Place(message_type), counted, sizes))
    except DecodeError as error:
        raise no_message(message_type, len(raw)) from error
