"""Admission of an RM's messages on its callback stream: hello, answers, configurations. Pure.

A message that is no FromResourceManager ends the stream. So does a hello that is missing, repeated, or of another RM.
Everything else is judged item by item, and the stream continues:

item                       if it is bad
predicates                 dropped: the question counts as unanswered at its deadline
preemption_predicates      dropped likewise
state_dumps                goes on as an error, so that the caller who wants the dump need not wait
configurations             answered with a ConfigurationResult that gives the reason

A reason or an error is a text for people, often an exception's. An over-long one is cut and marked as cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from muster_proto.muster.v1 import callbacks_pb2

from muster_gateway.admission import check_rm_id, parsed
from muster_gateway.bounded_messages import SIZES, Counted, Steps, StepSizes, bounded_steps
from muster_gateway.callback_codec import CallbackSubscription, decode_subscription
from muster_gateway.errors import InvalidRequest, quote
from muster_gateway.item_lists import ItemList, Layout, Span, chunks, joined, layout_steps, no_message
from muster_gateway.record_parts import RecordParts
from muster_gateway.settings import AdmissionLimits

Message = callbacks_pb2.FromResourceManager

MAX_REASON_CHARS = 1_024
MAX_DUMP_BYTES = 512 * 1024
_ECHO_CHARS = 4_096
_OPEN_PROPOSALS = frozenset(callbacks_pb2.OpenProposals.values())
# Returns an answer's problem, and whether the answer was repaired in place.
Judge = Callable[[Any, AdmissionLimits], tuple[str | None, bool]]


@dataclass(slots=True)
class AdmittedCallbacks:
    """The rest of a message after admission.

    :param payloads: FromResourceManager messages with answers only, for the log, in order.
    :param updates: configurations for the scheduler: the RM's id of each, and the request's bytes.
    :param refused: refused configurations: the RM's id of each, and the reason.
    :param items: number of answers and configurations in the message.
    :param problems: the problems, item by item.
    """

    payloads: list[bytes]
    updates: list[tuple[str, bytes]]
    refused: list[tuple[str, str]]
    items: int
    problems: list[str] = field(default_factory=list)


def hello_steps(
    raw: bytes, rm_id: str | None, limits: AdmissionLimits, sizes: StepSizes = SIZES
) -> Steps[tuple[str, CallbackSubscription]]:
    """Returns the rmID and the wishes in a stream's first message, in steps. A small message is one step.

    Raises InvalidRequest.

    :param rm_id: the metadata's.
    """
    is_small = len(raw) <= sizes.whole_bytes
    message = parsed(Message, raw) if is_small else (yield from _layout(raw, limits, sizes)).remainder
    if not message.HasField("hello"):
        raise InvalidRequest("hello: absent, expected in the stream's first message")
    hello = message.hello
    if rm_id is None:
        check_rm_id(hello.rm_id, limits, "hello.rm_id")
        rm_id = str(hello.rm_id)
    elif hello.rm_id and hello.rm_id != rm_id:
        raise InvalidRequest(f"hello.rm_id: {quote(hello.rm_id)}, expected {quote(rm_id)}: the metadata says so")
    if hello.open_proposals not in _OPEN_PROPOSALS:
        expected = ", ".join(f"{number} ({name})" for name, number in callbacks_pb2.OpenProposals.items())
        raise InvalidRequest(f"hello.open_proposals: {hello.open_proposals}, expected one of {expected}")
    return rm_id, decode_subscription(hello)


def callback_steps(
    raw: bytes, rm_id: str, limits: AdmissionLimits, *, first: bool, sizes: StepSizes = SIZES
) -> Steps[AdmittedCallbacks]:
    """Judges one message of a stream that belongs to ``rm_id``, in steps. Raises InvalidRequest.

    A small message whose answers are all good is one step, and stays as received.

    :param first: the message has the hello, which :func:`hello_steps` has judged.
    """
    if not first and len(raw) <= min(sizes.whole_bytes, limits.record_bytes, limits.max_record_bytes):
        message = parsed(Message, raw)
        count = len(message.predicates) + len(message.preemption_predicates) + len(message.state_dumps)
        is_plain = not message.HasField("hello") and not message.configurations
        if is_plain and count <= min(limits.record_items, limits.max_items) and _is_good(message, limits):
            return AdmittedCallbacks([raw] if count else [], [], [], count)
    layout = yield from _layout(raw, limits, sizes)
    if layout.remainder.HasField("hello") and not first:
        raise InvalidRequest("hello: a second one, expected in the stream's first message only")
    judgement = _Judgement(raw, rm_id, limits, sizes)
    try:
        return (yield from judgement.steps(layout))
    except DecodeError as error:
        raise no_message(Message, len(raw)) from error


def _is_good(message: Any, limits: AdmissionLimits) -> bool:
    for item_list, judge in zip(_LISTS, _JUDGES, strict=False):
        for item in item_list.items(message):
            if judge(item, limits) != (None, False):
                return False
    return True


def _layout(raw: bytes, limits: AdmissionLimits, sizes: StepSizes) -> Steps[Layout]:
    return (yield from layout_steps(Message, raw, _LISTS, limits.max_items, sizes, leaves_out=True))


class _Judgement:
    """Parses and judges the items of one message, some at a time."""

    def __init__(self, raw: bytes, rm_id: str, limits: AdmissionLimits, sizes: StepSizes) -> None:
        self._raw, self._rm_id, self._limits, self._sizes = raw, rm_id, limits, sizes
        self._records = RecordParts(raw, 0, "", min(limits.record_bytes, limits.max_record_bytes), limits.record_items)
        self._admitted = AdmittedCallbacks([], [], [], 0)

    def steps(self, layout: Layout) -> Steps[AdmittedCallbacks]:
        admitted, limits, sizes = self._admitted, self._limits, self._sizes
        for at, (item_list, spans, left_out) in enumerate(zip(_LISTS, layout.spans, layout.left_out, strict=True)):
            count = len(spans) + left_out
            admitted.items += count
            for first, after in chunks(spans, sizes):
                begin, body, end = spans[first]
                if end - begin > sizes.large_bytes:
                    counted = [Counted(("request", "extraConfig"), limits.max_tags, "request.extraConfig")]
                    if item_list is not _LISTS[-1]:
                        counted.clear()
                    bounded = yield from bounded_steps(
                        self._raw, body, end, item_list.location(Message), counted, sizes
                    )
                    items, over = [bounded.message], bounded.over
                else:
                    items = item_list.parse(Message, joined(self._raw, spans, first, after), after - first)
                    over = {}
                for index, item in enumerate(items, first):
                    if item_list is _LISTS[-1]:
                        self._judge_configuration(item, index, over)
                    else:
                        self._judge(item_list, _JUDGES[at], item, index, spans[index])
                yield
            spans.clear()  # (to free many at once takes milliseconds)
            if left_out:
                problem = f"{item_list.name}: {count} items, expected at most {limits.max_items}: the rest is dropped"
                admitted.problems.append(problem)
        admitted.payloads = self._records.all()
        return admitted

    def _judge(self, item_list: ItemList, judge: Judge, item: Any, index: int, span: Span) -> None:
        """Judges an answer. A bad one is dropped, or repaired where that is possible."""
        problem, mended = judge(item, self._limits)
        if problem is not None:
            self._admitted.problems.append(f"{item_list.name}[{index}].{problem}")
        if mended or (problem is None and span[2] - span[0] > self._sizes.large_bytes):
            self._records.add_item(item_list.tag, 0, item.SerializeToString())
        elif problem is None:
            self._records.add(item_list.tag, 0, span[0], span[2])

    def _judge_configuration(self, update: Any, index: int, over: dict[str, int]) -> None:
        limits, rm_id, problem = self._limits, self._rm_id, ""
        if not 0 < len(update.id) <= limits.max_id_chars:
            problem = f"id: {quote(update.id)}, expected 1 to {limits.max_id_chars} characters"
        elif update.request.rmID != rm_id:
            problem = f"request.rmID: {quote(update.request.rmID)}, expected {quote(rm_id)}: a stream belongs to one RM"
        for name, count in over.items():
            problem = problem or f"{name}: {count} entries, expected at most {limits.max_tags}"
        if problem:
            problem = f"configurations[{index}].{problem}"
            self._admitted.problems.append(problem)
            self._admitted.refused.append((update.id[:_ECHO_CHARS], problem))
        else:
            self._admitted.updates.append((update.id, update.request.SerializeToString()))


def _judge_predicates(answer: callbacks_pb2.PredicatesAnswer, _limits: AdmissionLimits) -> tuple[str | None, bool]:
    if not answer.id:
        return "id: 0, expected a question's", False
    return None, _cut(answer, "reason")


def _judge_preemption(
    answer: callbacks_pb2.PreemptionPredicatesAnswer, _limits: AdmissionLimits
) -> tuple[str | None, bool]:
    if not answer.id:
        return "id: 0, expected a question's", False
    if answer.response.success and answer.response.index < 0:
        return f"response.index: {answer.response.index}, expected 0 or more", False
    return None, _cut(answer, "reason")


def _judge_dump(answer: callbacks_pb2.StateDumpAnswer, limits: AdmissionLimits) -> tuple[str | None, bool]:
    if not 0 < len(answer.id) <= limits.max_id_chars:
        return f"id: {quote(answer.id)}, expected 1 to {limits.max_id_chars} characters", False
    # In UTF-8 a character has at most four bytes.
    if len(answer.json) * 4 > MAX_DUMP_BYTES and (size := len(answer.json.encode())) > MAX_DUMP_BYTES:
        problem = f"json: {size} bytes, expected at most {MAX_DUMP_BYTES}"
        answer.ClearField("json")
        answer.error = problem
        return problem, True
    return None, _cut(answer, "error")


def _cut(answer: Any, name: str) -> bool:
    text = getattr(answer, name)
    if len(text) <= MAX_REASON_CHARS:
        return False
    setattr(answer, name, f"{text[:MAX_REASON_CHARS]}… ({len(text)} characters)")
    return True


_LISTS = (
    ItemList("predicates", 0x12, lambda m: m.predicates),
    ItemList("preemption_predicates", 0x1A, lambda m: m.preemption_predicates),
    ItemList("state_dumps", 0x22, lambda m: m.state_dumps),
    ItemList("configurations", 0x2A, lambda m: m.configurations),
)
_JUDGES: tuple[Judge, ...] = (_judge_predicates, _judge_preemption, _judge_dump)
