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

from dataclasses import dataclass, field
from typing import Any

from muster_proto.muster.v1 import callbacks_pb2

from muster_gateway.admission import check_rm_id, parsed
from muster_gateway.callback_codec import Wishes, wishes_of
from muster_gateway.errors import InvalidRequest, shown
from muster_gateway.settings import AdmissionLimits

Message = callbacks_pb2.FromResourceManager

MAX_REASON_CHARS = 1_024
MAX_DUMP_BYTES = 512 * 1024
_ECHO_CHARS = 4_096


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


def hello_of(raw: bytes, rm_id: str | None, limits: AdmissionLimits) -> tuple[str, Wishes]:
    """Returns the rmID and the wishes in a stream's first message. ``rm_id`` is the metadata's. Raises
    InvalidRequest.
    """
    message = parsed(Message, raw)
    if not message.HasField("hello"):
        raise InvalidRequest("hello: absent, expected in the stream's first message")
    hello = message.hello
    if rm_id is None:
        check_rm_id(hello.rm_id, limits, "hello.rm_id")
        return hello.rm_id, wishes_of(hello)
    if hello.rm_id and hello.rm_id != rm_id:
        raise InvalidRequest(f"hello.rm_id: {shown(hello.rm_id)}, expected {shown(rm_id)}: the metadata says so")
    return rm_id, wishes_of(hello)


def admit_callbacks(raw: bytes, rm_id: str, limits: AdmissionLimits, *, first: bool) -> AdmittedCallbacks:
    """Judges one message of a stream that belongs to ``rm_id``. Raises InvalidRequest.

    :param first: the message has the hello, which :func:`hello_of` has judged.
    """
    message = parsed(Message, raw)
    if message.HasField("hello") and not first:
        raise InvalidRequest("hello: a second one, expected in the stream's first message only")
    items = (
        len(message.predicates)
        + len(message.preemption_predicates)
        + len(message.state_dumps)
        + len(message.configurations)
    )
    admitted = AdmittedCallbacks([], [], [], items)
    # 1. answers, changed in place; an unchanged message is forwarded as received
    changed = first
    for name, judge in (
        ("predicates", _judge_predicates),
        ("preemption_predicates", _judge_preemption),
        ("state_dumps", _judge_dump),
    ):
        changed |= _keep_good(getattr(message, name), name, judge, limits, admitted.problems)
    # 2. configurations
    if message.configurations:
        changed = True
        _judge_configurations(message, rm_id, limits, admitted)
        message.ClearField("configurations")
    # 3. for the log
    if message.predicates or message.preemption_predicates or message.state_dumps:
        message.ClearField("hello")
        payload = message.SerializeToString() if changed else raw
        admitted.payloads = [payload] if len(payload) <= limits.max_record_bytes else _split(message, limits)
    return admitted


def _keep_good(items: Any, name: str, judge: Any, limits: AdmissionLimits, problems: list[str]) -> bool:
    """Removes the bad items from the list and repairs items where possible. Returns whether anything was changed."""
    bad: list[int] = []
    changed = False
    for index, item in enumerate(items):
        if index >= limits.max_items:
            problems.append(f"{name}: {len(items)} items, expected at most {limits.max_items}: the rest is dropped")
            del items[index:]
            changed = True
            break
        problem, mended = judge(item, limits)
        if problem is not None:
            problems.append(f"{name}[{index}].{problem}")
            if not mended:
                bad.append(index)
        changed |= mended
    for index in reversed(bad):
        del items[index]
    return changed or bool(bad)


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
        return f"id: {shown(answer.id)}, expected 1 to {limits.max_id_chars} characters", False
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


def _judge_configurations(message: Message, rm_id: str, limits: AdmissionLimits, admitted: AdmittedCallbacks) -> None:
    for index, update in enumerate(message.configurations):
        problem = ""
        if not 0 < len(update.id) <= limits.max_id_chars:
            problem = f"id: {shown(update.id)}, expected 1 to {limits.max_id_chars} characters"
        elif update.request.rmID != rm_id:
            problem = f"request.rmID: {shown(update.request.rmID)}, expected {shown(rm_id)}: a stream belongs to one RM"
        if problem:
            problem = f"configurations[{index}].{problem}"
            admitted.problems.append(problem)
            admitted.refused.append((update.id[:_ECHO_CHARS], problem))
        else:
            admitted.updates.append((update.id, update.request.SerializeToString()))


def _split(message: Message, limits: AdmissionLimits) -> list[bytes]:
    """Splits a message into parts that each fit a record, in order. A single answer fits."""
    whole = message.SerializeToString()
    if len(whole) <= limits.max_record_bytes:
        return [whole]
    first, second = Message(), Message()
    count = len(message.predicates) + len(message.preemption_predicates) + len(message.state_dumps)
    left = count // 2
    for name in ("predicates", "preemption_predicates", "state_dumps"):
        items = getattr(message, name)
        getattr(first, name).extend(items[:left])
        getattr(second, name).extend(items[left:])
        left = max(0, left - len(items))
    return [whole] if count < 2 else _split(first, limits) + _split(second, limits)
