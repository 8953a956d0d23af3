"""What admission must say of a message, from protobuf's parse of the whole of it; and the comparison with steps."""

from __future__ import annotations

from typing import Any

from admitting import admit
from google.protobuf.message import DecodeError
from muster_gateway.admission import KINDS, AdmittedMessage
from muster_gateway.bounded_messages import StepSizes
from muster_gateway.errors import InvalidRequest, OverLimit
from muster_gateway.item_checks import Facts, allocation_problem
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind

# So small that a small message takes all ways of a large one.
TINY = [
    StepSizes(whole_bytes=0, fields=1, chunk_items=1, chunk_bytes=1, large_bytes=2, piece_bytes=2),
    StepSizes(whole_bytes=0, fields=3, chunk_items=3, chunk_bytes=50, large_bytes=9, piece_bytes=5),
    StepSizes(whole_bytes=0, fields=2, chunk_items=2, chunk_bytes=300, large_bytes=60, piece_bytes=60),
]
LIMITS = AdmissionLimits.model_validate({
    "max_tags": 4, "max_resource_types": 3, "max_groups": 3, "max_tags_bytes": 90, "max_items": 9, "max_id_chars": 30,
    "record_items": 2, "max_record_bytes": 1024, "record_bytes": 1024,
})  # fmt: skip
WHOLE = Facts(may_be_large=True)


def problem_of(kind: StreamKind, check: Any, item: Any, name: str) -> str | None:
    problem: str | None = check(item, name, LIMITS, WHOLE)
    if problem is None and kind is StreamKind.NODE:
        for index, existing in enumerate(item.existingAllocations):
            if found := allocation_problem(existing, f"{name}.existingAllocations[{index}]", LIMITS, WHOLE):
                return found
    return problem


def expected(kind: StreamKind, raw: bytes) -> tuple[list[list[Any]], list[tuple[str, ...]]] | type[Exception]:
    """The accepted items of each list, and the rejected ones with their reasons; or the error."""
    of = KINDS[kind]
    try:
        message = of.message.FromString(raw)
    except DecodeError:
        return InvalidRequest
    if message.rmID != "rm":
        return InvalidRequest
    accepted: list[list[Any]] = []
    rejected: list[tuple[str, ...]] = []
    count = 0
    for each in of.lists:
        good = []
        for index, item in enumerate(each.items.items(message)):
            count += 1 + (len(item.existingAllocations) if kind is StreamKind.NODE else 0)
            problem = problem_of(kind, each.check, item, each.items.name)
            if problem is None:
                good.append(item)
            else:
                name = each.items.name
                echo = tuple(getattr(item, field) for field in each.echo)
                rejected.append((*echo, problem.replace(name, f"{name}[{index}]", 1)))
        accepted.append(good)
    return OverLimit if count > LIMITS.max_items else (accepted, rejected)


def outcome(kind: StreamKind, left: AdmittedMessage) -> tuple[list[list[Any]], list[tuple[str, ...]]]:
    of = KINDS[kind]
    messages = [of.message.FromString(payload) for payload in left.payloads]
    assert all(message.rmID == "rm" for message in messages)
    accepted = [[item for message in messages for item in each.items.items(message)] for each in of.lists]
    rejected = []
    for answer in map(of.answer.FromString, left.answers):
        rejections = (
            (*answer.rejectedAllocations, *answer.rejected) if kind is StreamKind.ALLOCATION else answer.rejected
        )
        echo = of.lists[0].echo
        rejected += [(*(getattr(each, field) for field in echo), each.reason) for each in rejections]
    return accepted, rejected


def without_counts(rejected: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """An entry that replaces another one is counted as well: the number in a reason may be larger."""
    found = []
    for *echo, reason in rejected:
        field, _, rest = reason.partition(": ")
        many = rest.split(" ", 1)
        if len(many) == 2 and many[0].isdigit() and many[1].startswith(("entries,", "types,", "groups,")):
            reason = f"{field}: {many[1]}"
        found.append((*echo, reason))
    return sorted(found)


def compare(kind: StreamKind, raw: bytes, sizes: StepSizes) -> str:
    """Fails where both differ. Returns the verdict in a word."""
    want = expected(kind, raw)
    try:
        left = admit(kind, raw, "rm", LIMITS, sizes)
    except (InvalidRequest, OverLimit) as error:
        raised = type(error)
    else:
        raised = None
    if raised is not None or isinstance(want, type):
        # a message over the limit of items is not read on: it may be no protobuf after that
        assert raised is want or {raised, want} == {InvalidRequest, OverLimit}
        return raised.__name__
    accepted, rejected = outcome(kind, left)
    assert accepted == want[0]
    assert without_counts(rejected) == without_counts(want[1])
    assert left.rejected == len(rejected)
    return "rejected" if rejected else "accepted"
