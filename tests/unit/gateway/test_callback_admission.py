"""An RM's messages on its callback stream: those passed on, those dropped, and those that end the stream."""

from __future__ import annotations

from typing import Any

import pytest
from admitting import admit_callbacks, hello_of
from hypothesis import given
from hypothesis import strategies as st
from muster_gateway.callback_admission import MAX_DUMP_BYTES, MAX_REASON_CHARS
from muster_gateway.errors import InvalidRequest
from muster_gateway.settings import AdmissionLimits
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si

LIMITS = AdmissionLimits()
Message = pb.FromResourceManager


def yes(number: int, reason: str = "") -> pb.PredicatesAnswer:
    return pb.PredicatesAnswer(id=number, fits=True, reason=reason)


def victims(number: int, index: int, *, success: bool = True) -> pb.PreemptionPredicatesAnswer:
    response = si.PreemptionPredicatesResponse(success=success, index=index)
    return pb.PreemptionPredicatesAnswer(id=number, response=response)


def admitted(message: Message, limits: AdmissionLimits = LIMITS, *, first: bool = False) -> Any:
    return admit_callbacks(message.SerializeToString(), "rm", limits, first=first)


def logged(result: Any) -> Message:
    """Return all admitted messages as one."""
    whole = Message()
    for payload in result.payloads:
        whole.MergeFromString(payload)
    return whole


# ---- hello ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("metadata", "said"), [("rm", ""), ("rm", "rm"), (None, "rm")])
def test_the_rm_is_named_by_metadata_or_hello(metadata: str | None, said: str) -> None:
    raw = Message(hello=pb.Hello(rm_id=said, predicates=True)).SerializeToString()
    rm_id, hello = hello_of(raw, metadata, LIMITS)
    assert rm_id == "rm"
    assert hello.predicates


@pytest.mark.parametrize(
    ("message", "metadata", "complaint"),
    [
        (Message(predicates=[yes(1)]), "rm", "hello: absent, expected in the stream's first message"),
        (Message(), "rm", "hello: absent"),
        (Message(hello=pb.Hello()), None, "hello.rm_id: empty, expected 1 to 256 characters"),
        (Message(hello=pb.Hello(rm_id="r\nm")), None, "hello.rm_id: 'r\\\\nm', expected no control characters"),
        (Message(hello=pb.Hello(rm_id="x")), "rm", "hello.rm_id: 'x', expected 'rm': the metadata says so"),
    ],
)
def test_a_wrong_hello_names_the_field(message: Message, metadata: str | None, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        hello_of(message.SerializeToString(), metadata, LIMITS)


def test_a_second_hello_ends_the_stream() -> None:
    with pytest.raises(InvalidRequest, match="hello: a second one"):
        admitted(Message(hello=pb.Hello(), predicates=[yes(1)]))


def test_an_unreadable_message_ends_the_stream() -> None:
    with pytest.raises(InvalidRequest, match=r"7 bytes that are no muster\.v1\.From"):
        admit_callbacks(b"\xffgarbag", "rm", LIMITS, first=False)


def test_the_first_message_may_carry_more_than_hello_but_hello_is_not_logged() -> None:
    result = admitted(Message(hello=pb.Hello(predicates=True), predicates=[yes(7)]), first=True)
    assert logged(result) == Message(predicates=[yes(7)])
    assert admitted(Message(hello=pb.Hello()), first=True).payloads == []


# ---- answers --------------------------------------------------------------------------------------------------------


def test_good_answers_go_on_as_they_came() -> None:
    dump = pb.StateDumpAnswer(id="d", json="{}")
    # (a later version's field is passed on, too)
    raw = Message(predicates=[yes(1), yes(2)], preemption_predicates=[victims(3, 0)], state_dumps=[dump])
    raw = raw.SerializeToString() + b"\xfa\x3e\x01x"
    result = admit_callbacks(raw, "rm", LIMITS, first=False)
    assert result.payloads == [raw]
    assert (result.items, result.problems) == (4, [])


def test_a_bad_answer_is_dropped_and_the_others_go_on() -> None:
    result = admitted(
        Message(
            predicates=[yes(1), yes(0), yes(2)],
            preemption_predicates=[victims(0, 1), victims(4, -1), victims(5, -1, success=False)],
            state_dumps=[pb.StateDumpAnswer(id="", json="{}"), pb.StateDumpAnswer(id="x" * 257)],
        )
    )
    assert logged(result) == Message(predicates=[yes(1), yes(2)], preemption_predicates=[victims(5, -1, success=False)])
    assert result.items == 8
    assert [problem[:45] for problem in result.problems] == [
        "predicates[1].id: 0, expected a question's",
        "preemption_predicates[0].id: 0, expected a qu",
        "preemption_predicates[1].response.index: -1, ",
        "state_dumps[0].id: '', expected 1 to 256 char",
        "state_dumps[1].id: 'xxxxxxxxxxxxxxxxxxxxxxxxx",
    ]


def test_nothing_but_bad_answers_is_nothing_for_the_log() -> None:
    assert admitted(Message(predicates=[yes(0)])).payloads == []


def test_a_reason_for_people_is_cut_and_says_so() -> None:
    result = admitted(Message(predicates=[yes(1, "ä" * 3_000), yes(2, "b" * MAX_REASON_CHARS)]))
    cut, whole = logged(result).predicates
    assert cut.reason == "ä" * MAX_REASON_CHARS + "… (3000 characters)"
    assert whole.reason == "b" * MAX_REASON_CHARS
    assert not result.problems


@pytest.mark.parametrize(("letter", "width"), [("a", 1), ("€", 3)])
def test_a_dump_that_is_too_large_becomes_an_error_for_its_caller(letter: str, width: int) -> None:
    fits = pb.StateDumpAnswer(id="fits", json=letter * (MAX_DUMP_BYTES // width))
    over = pb.StateDumpAnswer(id="over", json=letter * (MAX_DUMP_BYTES // width + 1))
    result = admitted(Message(state_dumps=[fits, over]))
    first, second = logged(result).state_dumps
    assert first == fits
    assert second.json == ""
    assert second.error.endswith(f"bytes, expected at most {MAX_DUMP_BYTES}")
    assert len(result.problems) == 1


def test_more_answers_than_allowed_are_cut_off() -> None:
    result = admitted(Message(predicates=[yes(n) for n in range(1, 9)]), AdmissionLimits(max_items=5))
    assert [answer.id for answer in logged(result).predicates] == [1, 2, 3, 4, 5]
    assert result.problems == ["predicates: 8 items, expected at most 5: the rest is dropped"]


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 6))
def test_a_message_larger_than_a_record_is_split_in_order(predicates: int, preemption: int, dumps: int) -> None:
    message = Message(
        predicates=[yes(n + 1, "r" * 100) for n in range(predicates)],
        preemption_predicates=[victims(n + 1, n) for n in range(preemption)],
        state_dumps=[pb.StateDumpAnswer(id=f"{n}", json="j" * 800) for n in range(dumps)],
    )
    result = admitted(message, AdmissionLimits(max_record_bytes=1_024))
    assert all(len(payload) <= 1_024 for payload in result.payloads)
    assert logged(result) == message


# ---- configurations -------------------------------------------------------------------------------------------------


def test_a_configuration_is_put_to_the_scheduler_and_not_logged_as_an_answer() -> None:
    request = si.UpdateConfigurationRequest(rmID="rm", config="partitions:")
    result = admitted(Message(configurations=[pb.ConfigurationUpdate(id="c", request=request)], predicates=[yes(1)]))
    assert result.updates == [("c", request.SerializeToString())]
    assert logged(result) == Message(predicates=[yes(1)])


@pytest.mark.parametrize(
    ("number", "rm_id", "complaint"),
    [
        ("", "rm", "configurations[0].id: '', expected 1 to 256 characters"),
        ("c", "other", "configurations[0].request.rmID: 'other', expected 'rm': a stream belongs to one RM"),
        ("c", "", "configurations[0].request.rmID: '', expected 'rm': a stream belongs to one RM"),
    ],
)
def test_a_bad_configuration_is_answered(number: str, rm_id: str, complaint: str) -> None:
    request = si.UpdateConfigurationRequest(rmID=rm_id)
    result = admitted(Message(configurations=[pb.ConfigurationUpdate(id=number, request=request)]))
    assert result.updates == []
    assert result.refused == [(number, complaint)]
    assert result.problems == [complaint]


@given(st.binary(max_size=400), st.booleans())
def test_no_bytes_make_admission_fail_otherwise(raw: bytes, first: bool) -> None:
    for judge in (lambda: admit_callbacks(raw, "rm", LIMITS, first=first), lambda: hello_of(raw, None, LIMITS)):
        try:
            judge()
        except InvalidRequest:
            continue
