"""Admission as tables: each bad item with its reason, and the items that pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from admitting import admit, admit_registration, rm_id_of
from hypothesis import given
from hypothesis import strategies as st
from muster_gateway.admission import AdmittedMessage
from muster_gateway.errors import InvalidRequest, OverLimit
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import SI_KINDS, StreamKind
from muster_proto.si.v1 import si_pb2
from muster_scheduler import ingest
from muster_si.constants import APP_TAG_CREATE_FORCE

LIMITS = AdmissionLimits()
ALLOCATION, APPLICATION, NODE = StreamKind.ALLOCATION, StreamKind.APPLICATION, StreamKind.NODE


def resource(**quantities: int) -> si_pb2.Resource:
    return si_pb2.Resource(resources={name: si_pb2.Quantity(value=value) for name, value in quantities.items()})


def ask(**changes: Any) -> si_pb2.AllocationAsk:
    fields = {"allocationKey": "k", "applicationID": "app", "resourceAsk": resource(vcore=1), "maxAllocations": 1}
    return si_pb2.AllocationAsk(**{**fields, **changes})


def allocation(**changes: Any) -> si_pb2.Allocation:
    fields = {"allocationKey": "k", "applicationID": "app", "resourcePerAlloc": resource(vcore=1)}
    return si_pb2.Allocation(**{**fields, **changes})


def application(**changes: Any) -> si_pb2.AddApplicationRequest:
    return si_pb2.AddApplicationRequest(**{"applicationID": "app", **changes})


def node(**changes: Any) -> si_pb2.NodeInfo:
    return si_pb2.NodeInfo(**{"nodeID": "n1", "action": si_pb2.NodeInfo.CREATE, **changes})


def user(name: str = "u", groups: tuple[str, ...] = ()) -> si_pb2.UserGroupInformation:
    return si_pb2.UserGroupInformation(user=name, groups=groups)


LONG = "x" * 257
MANY = {f"type-{n}": 1 for n in range(129)}
BIG_TAGS = {"key": "v" * (512 * 1024 + 1)}
MANY_TAGS = {f"k{n}": "v" for n in range(4_097)}

# name, item, reason (after the item's place)
BAD_ASKS = [
    ("empty key", ask(allocationKey=""), ".allocationKey: empty, expected 1 to 256 characters"),
    ("long key", ask(allocationKey=LONG), "(257 characters), expected at most 256 characters"),
    ("control in key", ask(allocationKey="a\x00b"), ".allocationKey: 'a\\x00b', expected no control characters"),
    ("line separator in key", ask(allocationKey="a\u2028b"), "expected no control characters"),
    ("long application", ask(applicationID=LONG), ".applicationID: "),
    ("newline in application", ask(applicationID="a\nb"), ".applicationID: 'a\\nb', expected no control"),
    ("long partition", ask(partitionName=LONG), ".partitionName: "),
    ("long task group", ask(taskGroupName=LONG), ".taskGroupName: "),
    ("no resource", ask(resourceAsk=None), ".resourceAsk: empty, expected at least one positive quantity"),
    ("zero resource", ask(resourceAsk=resource(vcore=0)), ".resourceAsk: all zero"),
    ("negative", ask(resourceAsk=resource(vcore=1, memory=-5)), ".resourceAsk['memory']: -5, expected no negative"),
    (
        "overflowing",
        ask(resourceAsk=resource(vcore=2**63 - 1)),
        "9223372036854775807, expected at most 9007199254740992",
    ),
    ("unnamed type", ask(resourceAsk=resource(**{"": 1})), ".resourceAsk, name of a type: empty"),
    ("long type", ask(resourceAsk=resource(**{LONG: 1})), ".resourceAsk, name of a type: "),
    ("many types", ask(resourceAsk=resource(**MANY)), ".resourceAsk: 129 types, expected at most 128"),
    ("negative repeats", ask(maxAllocations=-1), ".maxAllocations: -1, expected 0 to 100000"),
    ("absurd repeats", ask(maxAllocations=2**31 - 1), ".maxAllocations: 2147483647, expected 0 to 100000"),
    (
        "absurd time-out",
        ask(executionTimeoutMilliSeconds=2**63 - 1),
        ".executionTimeoutMilliSeconds: 9223372036854775807",
    ),
    ("large tags", ask(tags=BIG_TAGS), ".tags: 524292 bytes, expected at most 524288"),
    ("many tags", ask(tags=MANY_TAGS), ".tags: 4097 entries, expected at most 4096"),
]
BAD_ALLOCATIONS = [
    ("empty key", allocation(allocationKey=""), ".allocationKey: empty"),
    ("long application", allocation(applicationID=LONG), ".applicationID: "),
    ("long application on a node", allocation(applicationID=LONG, nodeID="n"), ".applicationID: "),
    ("long node", allocation(nodeID=LONG), ".nodeID: "),
    ("control in node", allocation(nodeID="n\x7f"), ".nodeID: 'n\\x7f', expected no control characters"),
    ("long UUID", allocation(UUID=LONG), ".UUID: "),
    ("no resource", allocation(resourcePerAlloc=None), ".resourcePerAlloc: empty"),
    ("negative", allocation(resourcePerAlloc=resource(vcore=-1)), ".resourcePerAlloc['vcore']: -1"),
    ("overflowing", allocation(resourcePerAlloc=resource(vcore=2**53 + 1)), "expected at most 9007199254740992"),
    ("many tags", allocation(allocationTags=MANY_TAGS), ".allocationTags: 4097 entries"),
]
BAD_APPLICATIONS = [
    ("empty id", application(applicationID=""), ".applicationID: empty"),
    ("long id", application(applicationID=LONG), ".applicationID: "),
    ("long queue", application(queueName="q" * 1025), ".queueName: "),
    ("control in queue", application(queueName="root.a\x1b[2J"), ".queueName: 'root.a\\x1b[2J', expected no control"),
    ("long partition", application(partitionName=LONG), ".partitionName: "),
    ("long style", application(gangSchedulingStyle=LONG), ".gangSchedulingStyle: "),
    ("long user", application(ugi=user(LONG)), ".ugi.user: "),
    ("control in user", application(ugi=user("a\tb")), ".ugi.user: 'a\\tb'"),
    ("empty group", application(ugi=user(groups=("",))), ".ugi.groups: empty"),
    ("many groups", application(ugi=user(groups=("g",) * 1_025)), ".ugi.groups: 1025 groups, expected at most 1024"),
    ("absurd time-out", application(executionTimeoutMilliSeconds=2**62), ".executionTimeoutMilliSeconds: "),
    ("negative gang", application(placeholderAsk=resource(vcore=-1)), ".placeholderAsk['vcore']: -1"),
    ("large tags", application(tags=BIG_TAGS), ".tags: 524292 bytes, expected at most 524288"),
]
BAD_NODES = [
    ("empty id", node(nodeID=""), ".nodeID: empty"),
    ("long id", node(nodeID=LONG), ".nodeID: "),
    ("no action", node(action=0), ".action: 0, expected one of [1, 2, 3, 4, 5, 6]"),
    ("unknown action", node(action=99), ".action: 99, expected one of"),
    ("negative capacity", node(schedulableResource=resource(memory=-1)), ".schedulableResource['memory']: -1"),
    ("overflowing capacity", node(schedulableResource=resource(memory=2**60)), "expected at most"),
    ("negative occupied", node(occupiedResource=resource(memory=-1)), ".occupiedResource['memory']: -1"),
    ("many attributes", node(attributes=MANY_TAGS), ".attributes: 4097 entries"),
    (
        "bad existing",
        node(existingAllocations=[allocation(allocationKey="")]),
        ".existingAllocations[0].allocationKey: empty",
    ),
]
BAD_RELEASES = [
    ("long key", si_pb2.AllocationRelease(allocationKey=LONG, applicationID="a"), ".allocationKey: "),
    ("long application", si_pb2.AllocationRelease(applicationID=LONG), ".applicationID: "),
    ("long partition", si_pb2.AllocationRelease(applicationID="a", partitionName=LONG), ".partitionName: "),
    ("long UUID", si_pb2.AllocationRelease(applicationID="a", UUID=LONG), ".UUID: "),
    ("of nothing", si_pb2.AllocationRelease(), ": neither allocationKey nor applicationID is set"),
]


def named(table: list[tuple[str, Any, str]]) -> Any:
    return pytest.mark.parametrize(("item", "reason"), [pytest.param(i, r, id=n) for n, i, r in table])


def admitted(kind: StreamKind, message: Any, limits: AdmissionLimits = LIMITS) -> AdmittedMessage:
    return admit(kind, message.SerializeToString(), "rm", limits)


def only_answer(left: AdmittedMessage) -> bytes:
    (answer,) = left.answers
    return answer


def parts_of(message: Any, max_bytes: int) -> list[bytes]:
    """The records of a message, with a smaller limit than settings may have."""
    raw = message.SerializeToString()
    return admit(ALLOCATION, raw, "rm", LIMITS.model_copy(update={"record_bytes": max_bytes})).payloads


@named(BAD_ASKS)
def test_a_bad_ask_is_answered_in_its_generations_words(item: Any, reason: str) -> None:
    good = ask(allocationKey="good")
    left = admitted(ALLOCATION, si_pb2.AllocationRequest(rmID="rm", asks=[good, item]))
    answer = si_pb2.AllocationResponse.FromString(only_answer(left))
    (rejected,) = answer.rejected
    assert (rejected.allocationKey, rejected.applicationID) == (item.allocationKey, item.applicationID)
    assert rejected.reason.startswith("asks[1]")
    assert reason in rejected.reason
    assert not answer.rejectedAllocations
    assert left.payloads == [si_pb2.AllocationRequest(rmID="rm", asks=[good]).SerializeToString()]


@named(BAD_ALLOCATIONS)
def test_a_bad_allocation_is_rejected(item: Any, reason: str) -> None:
    good = allocation(allocationKey="good")
    left = admitted(ALLOCATION, si_pb2.AllocationRequest(rmID="rm", allocations=[item, good]))
    answer = si_pb2.AllocationResponse.FromString(only_answer(left))
    (rejected,) = answer.rejectedAllocations
    assert (rejected.allocationKey, rejected.applicationID) == (item.allocationKey, item.applicationID)
    assert rejected.reason.startswith("allocations[0]")
    assert reason in rejected.reason
    assert not answer.rejected
    assert left.payloads == [si_pb2.AllocationRequest(rmID="rm", allocations=[good]).SerializeToString()]


@named(BAD_RELEASES)
def test_a_bad_release_is_rejected(item: Any, reason: str) -> None:
    good = si_pb2.AllocationRelease(applicationID="a", allocationKey="k")
    releases = si_pb2.AllocationReleasesRequest(allocationsToRelease=[item, good])
    left = admitted(ALLOCATION, si_pb2.AllocationRequest(rmID="rm", releases=releases))
    (rejected,) = si_pb2.AllocationResponse.FromString(only_answer(left)).rejectedAllocations
    assert rejected.reason.startswith("releases.allocationsToRelease[0]")
    assert reason in rejected.reason
    rest = si_pb2.AllocationReleasesRequest(allocationsToRelease=[good])
    assert left.payloads == [si_pb2.AllocationRequest(rmID="rm", releases=rest).SerializeToString()]


def test_a_bad_release_of_an_ask_is_rejected_as_an_ask() -> None:
    bad = si_pb2.AllocationAskRelease(applicationID="a", allocationKey=LONG)
    releases = si_pb2.AllocationReleasesRequest(allocationAsksToRelease=[bad])
    left = admitted(ALLOCATION, si_pb2.AllocationRequest(rmID="rm", releases=releases))
    (rejected,) = si_pb2.AllocationResponse.FromString(only_answer(left)).rejected
    assert rejected.reason.startswith("releases.allocationAsksToRelease[0].allocationKey: ")
    assert left.payloads == []


@named(BAD_APPLICATIONS)
def test_a_bad_application_is_rejected(item: Any, reason: str) -> None:
    good = application(applicationID="good")
    left = admitted(APPLICATION, si_pb2.ApplicationRequest(rmID="rm", new=[good, item]))
    (rejected,) = si_pb2.ApplicationResponse.FromString(only_answer(left)).rejected
    assert rejected.applicationID == item.applicationID
    assert rejected.reason.startswith("new[1]")
    assert reason in rejected.reason
    assert left.payloads == [si_pb2.ApplicationRequest(rmID="rm", new=[good]).SerializeToString()]


def test_a_bad_removal_is_rejected() -> None:
    left = admitted(APPLICATION, si_pb2.ApplicationRequest(rmID="rm", remove=[si_pb2.RemoveApplicationRequest()]))
    (rejected,) = si_pb2.ApplicationResponse.FromString(only_answer(left)).rejected
    assert rejected.reason.startswith("remove[0].applicationID: empty")


@named(BAD_NODES)
def test_a_bad_node_is_rejected(item: Any, reason: str) -> None:
    good = node(nodeID="good")
    left = admitted(NODE, si_pb2.NodeRequest(rmID="rm", nodes=[good, item]))
    (rejected,) = si_pb2.NodeResponse.FromString(only_answer(left)).rejected
    assert rejected.nodeID == item.nodeID
    assert rejected.reason.startswith("nodes[1]")
    assert reason in rejected.reason
    assert left.payloads == [si_pb2.NodeRequest(rmID="rm", nodes=[good]).SerializeToString()]


GOOD = [
    ("ask", ALLOCATION, si_pb2.AllocationRequest(asks=[ask(), ask(allocationKey="k2", maxAllocations=100_000)])),
    ("repeats not set", ALLOCATION, si_pb2.AllocationRequest(asks=[ask(maxAllocations=0)])),
    ("largest quantity", ALLOCATION, si_pb2.AllocationRequest(asks=[ask(resourceAsk=resource(memory=2**53))])),
    ("zero beside a positive one", ALLOCATION, si_pb2.AllocationRequest(asks=[ask(resourceAsk=resource(a=0, b=1))])),
    ("foreign", ALLOCATION, si_pb2.AllocationRequest(allocations=[allocation(applicationID="", nodeID="n")])),
    ("same key, two applications", ALLOCATION, si_pb2.AllocationRequest(asks=[ask(), ask(applicationID="b")])),
    ("letters of any script", ALLOCATION, si_pb2.AllocationRequest(asks=[ask(allocationKey="ключ 鍵\u00a0é")])),
    ("an ask and its update", ALLOCATION, si_pb2.AllocationRequest(asks=[ask(), ask(priority=7)])),
    (
        "an allocation and its update",
        ALLOCATION,
        si_pb2.AllocationRequest(allocations=[allocation(), allocation(resourcePerAlloc=resource(vcore=9))]),
    ),
    ("one key in both words", ALLOCATION, si_pb2.AllocationRequest(asks=[ask()], allocations=[allocation()])),
    (
        "types of a newer interface",
        ALLOCATION,
        si_pb2.AllocationRequest(
            releases=si_pb2.AllocationReleasesRequest(
                allocationsToRelease=[
                    si_pb2.AllocationRelease(applicationID="a", allocationKey="k", terminationType=77)
                ],
                allocationAsksToRelease=[
                    si_pb2.AllocationAskRelease(applicationID="a", allocationKey="k", terminationType=6)
                ],
            )
        ),
    ),
    ("never expires", ALLOCATION, si_pb2.AllocationRequest(asks=[ask(executionTimeoutMilliSeconds=-(2**63))])),
    ("application without user", APPLICATION, si_pb2.ApplicationRequest(new=[application()])),
    (
        "same id, two partitions",
        APPLICATION,
        si_pb2.ApplicationRequest(new=[application(), application(partitionName="p")]),
    ),
    ("node without capacity", NODE, si_pb2.NodeRequest(nodes=[node()])),
    ("node created and drained", NODE, si_pb2.NodeRequest(nodes=[node(), node(action=3)])),
    ("one id, twice: that is the scheduler's to judge", NODE, si_pb2.NodeRequest(nodes=[node(), node(action=6)])),
    (
        "one application, twice: likewise",
        APPLICATION,
        si_pb2.ApplicationRequest(new=[application(), application()]),
    ),
]


@pytest.mark.parametrize(("kind", "message"), [pytest.param(k, m, id=n) for n, k, m in GOOD])
def test_a_valid_message_is_passed_on_unchanged(kind: StreamKind, message: Any) -> None:
    message.rmID = "rm"
    raw = message.SerializeToString()
    left = admit(kind, raw, "rm", LIMITS)
    assert left.payloads == [raw]
    assert left.answers == []
    assert left.rejected == 0


def test_a_message_without_items_goes_nowhere() -> None:
    left = admitted(NODE, si_pb2.NodeRequest(rmID="rm"))
    assert (left.payloads, left.answers, left.items) == ([], [], 0)


@pytest.mark.parametrize(
    ("call", "error", "story"),
    [
        (
            lambda: admit(NODE, b"\xff\xff\xff", "rm", LIMITS),
            InvalidRequest,
            "3 bytes that are no si.v1.NodeRequest",
        ),
        (lambda: admit(NODE, b"\x12\x02\xff\xfe", "rm", LIMITS), InvalidRequest, "that are no si.v1.NodeRequest"),
        (lambda: admitted(NODE, si_pb2.NodeRequest(rmID="b")), InvalidRequest, "rmID: 'b', expected 'rm'"),
        (lambda: admitted(NODE, si_pb2.NodeRequest()), InvalidRequest, "rmID: '', expected 'rm'"),
        (
            lambda: admitted(NODE, si_pb2.NodeRequest(rmID="rm", nodes=[node()] * 3), AdmissionLimits(max_items=2)),
            OverLimit,
            "NodeRequest: 3 items, expected at most 2",
        ),
        (
            lambda: admitted(
                NODE,
                si_pb2.NodeRequest(rmID="rm", nodes=[node(existingAllocations=[allocation()] * 3)]),
                AdmissionLimits(max_items=3),
            ),
            OverLimit,
            "NodeRequest: 4 items, expected at most 3",
        ),
        (lambda: rm_id_of(NODE, b"", LIMITS), InvalidRequest, "rmID: empty, expected 1 to 256 characters"),
        (
            lambda: rm_id_of(NODE, si_pb2.NodeRequest(rmID=" ").SerializeToString(), LIMITS),
            InvalidRequest,
            "rmID: ' ', expected more than blanks",
        ),
    ],
)
def test_a_message_of_no_rm_raises(call: Callable[[], Any], error: type[Exception], story: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert story in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "error", "story"),
    [
        ({}, InvalidRequest, "rmID: empty"),
        ({"rmID": LONG}, InvalidRequest, "rmID: "),
        ({"rmID": "a\rb"}, InvalidRequest, "rmID: 'a\\rb', expected no control characters"),
        ({"rmID": "rm", "version": LONG}, InvalidRequest, "version: "),
        ({"rmID": "rm", "policyGroup": "a\x00"}, InvalidRequest, "policyGroup: 'a\\x00'"),
        ({"rmID": "rm", "buildInfo": MANY_TAGS}, InvalidRequest, "buildInfo: 4097 entries"),
        ({"rmID": "rm", "extraConfig": BIG_TAGS}, InvalidRequest, "extraConfig: 524292 bytes"),
        ({"rmID": "rm", "config": "#" * (1 << 20)}, OverLimit, "config: 1048576 characters"),
    ],
)
def test_a_bad_registration_raises(fields: dict[str, Any], error: type[Exception], story: str) -> None:
    with pytest.raises(error) as caught:
        admit_registration(si_pb2.RegisterResourceManagerRequest(**fields).SerializeToString(), LIMITS)
    assert story in str(caught.value)


def test_an_over_long_value_is_never_shown_whole() -> None:
    with pytest.raises(InvalidRequest) as caught:
        rm_id_of(NODE, si_pb2.NodeRequest(rmID="s3cret" * 1000).SerializeToString(), LIMITS)
    assert len(str(caught.value)) < 200


def test_an_item_that_no_record_can_hold_is_rejected() -> None:
    limits = AdmissionLimits(max_record_bytes=4096, max_tags_bytes=3000)
    fat = ask(tags={f"k{n}": "v" * 100 for n in range(25)}, resourceAsk=resource(**{f"{n:0100}": 1 for n in range(20)}))
    left = admitted(ALLOCATION, si_pb2.AllocationRequest(rmID="rm", asks=[fat, ask(allocationKey="b")]), limits)
    assert left.rejected == 1
    assert b"bytes, expected at most" in only_answer(left)


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60), st.integers(300, 3_000))
def test_parts_of_a_split_message_hold_every_item_once_in_order(a: int, b: int, c: int, limit: int) -> None:
    message = si_pb2.AllocationRequest(rmID="rm")
    message.allocations.extend(allocation(allocationKey=f"a{n}") for n in range(a))
    message.asks.extend(ask(allocationKey=f"b{n}") for n in range(b))
    message.releases.allocationsToRelease.extend(si_pb2.AllocationRelease(allocationKey=f"c{n}") for n in range(c))
    parts = [si_pb2.AllocationRequest.FromString(part) for part in parts_of(message, limit)]
    assert all(part.rmID == "rm" and part.ByteSize() <= limit for part in parts)
    keys = [
        item.allocationKey
        for part in parts
        for item in (*part.releases.allocationsToRelease, *part.allocations, *part.asks)
    ]
    assert keys == [f"c{n}" for n in range(c)] + [f"a{n}" for n in range(a)] + [f"b{n}" for n in range(b)]


def test_parts_are_in_the_order_in_which_the_scheduler_takes_the_lists() -> None:
    """A release that makes room stays before the ask that needs it, whether the message is whole or in parts."""
    message = si_pb2.AllocationRequest(rmID="rm")
    message.asks.append(ask(allocationKey="4"))
    message.allocations.append(allocation(allocationKey="3"))
    message.releases.allocationAsksToRelease.append(si_pb2.AllocationAskRelease(allocationKey="2", applicationID="a"))
    message.releases.allocationsToRelease.append(si_pb2.AllocationRelease(allocationKey="1", applicationID="a"))

    def taken(value: bytes) -> list[str]:
        command = ingest.allocations(value)
        return [item.key for item in (*command.releases, *command.asks)]

    whole = taken(message.SerializeToString())
    parts = parts_of(message, 1)
    assert whole == ["1", "2", "3", "4"]
    assert len(parts) == 4
    assert [key for part in parts for key in taken(part)] == whole


@given(st.binary(max_size=400))
def test_no_bytes_make_admission_fail_otherwise(raw: bytes) -> None:
    for kind in SI_KINDS:
        try:
            admit(kind, raw, "rm", LIMITS)
        except (InvalidRequest, OverLimit):
            continue


# ---- invisible characters in names ---------------------------------------------------------------------------------

HIDDEN = {
    "right to left": "pay\u202eroll",
    "isolate": "a\u2066b",
    "zero width": "team\u200b",
    "byte order mark": "\ufeffteam",
    "joiner": "a\u034fb",
    "filler": "a\u3164",
    "tag": "a\U000e0041",
    "soft hyphen": "a\u00adb",
}
READABLE = ["équipe-1", "команда", "团队", "チーム", "فريق", "देव", "ns/pod-1:2", "a b", "x@corp.example", "é"]


def _named(kind: StreamKind, name: str, where: str, **more: Any) -> Any:
    match where:
        case "applicationID":
            new = [application(applicationID=name, **more)]
        case "queueName":
            new = [application(queueName=f"root.{name}", **more)]
        case "user":
            new = [application(ugi=si_pb2.UserGroupInformation(user=name, groups=["g"]), **more)]
        case "groups":
            new = [application(ugi=si_pb2.UserGroupInformation(user="u", groups=[name]), **more)]
        case "nodeID":
            return si_pb2.NodeRequest(rmID="rm", nodes=[node(nodeID=name)])
        case "allocationKey":
            return si_pb2.AllocationRequest(rmID="rm", allocations=[allocation(allocationKey=name, nodeID="", **more)])
        case "ask":
            return si_pb2.AllocationRequest(rmID="rm", asks=[ask(allocationKey=name)])
    return si_pb2.ApplicationRequest(rmID="rm", new=new)


PLACES = {
    "applicationID": StreamKind.APPLICATION,
    "queueName": StreamKind.APPLICATION,
    "user": StreamKind.APPLICATION,
    "groups": StreamKind.APPLICATION,
    "nodeID": StreamKind.NODE,
    "allocationKey": StreamKind.ALLOCATION,
    "ask": StreamKind.ALLOCATION,
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", HIDDEN.values(), ids=HIDDEN)
def test_no_new_name_has_characters_that_nobody_sees(where: str, name: str) -> None:
    message = _named(PLACES[where], name, where)
    admitted = admit(PLACES[where], message.SerializeToString(), "rm", LIMITS)
    assert admitted.rejected == 1
    (hidden,) = {each for each in name if not each.isalnum() or each == "\u3164"}
    said = only_answer(admitted).decode(errors="replace")
    assert f"has U+{ord(hidden):04X}, expected visible characters" in said


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", READABLE)
def test_names_in_every_script_are_fine(where: str, name: str) -> None:
    message = _named(PLACES[where], name, where)
    assert admit(PLACES[where], message.SerializeToString(), "rm", LIMITS).rejected == 0


@pytest.mark.parametrize("name", HIDDEN.values(), ids=HIDDEN)
def test_what_runs_already_is_taken_in_whatever_its_name(name: str) -> None:
    forced = {APP_TAG_CREATE_FORCE: "true"}
    for where in ("applicationID", "queueName", "user", "groups"):
        message = _named(StreamKind.APPLICATION, name, where, tags=forced)
        assert admit(StreamKind.APPLICATION, message.SerializeToString(), "rm", LIMITS).rejected == 0, where
    runs = si_pb2.AllocationRequest(
        rmID="rm", allocations=[allocation(allocationKey=name, applicationID=name, nodeID="n1")]
    )
    assert admit(StreamKind.ALLOCATION, runs.SerializeToString(), "rm", LIMITS).rejected == 0
    ended = si_pb2.AllocationReleasesRequest(
        allocationsToRelease=[si_pb2.AllocationRelease(applicationID=name, allocationKey=name)]
    )
    gone = si_pb2.AllocationRequest(rmID="rm", releases=ended)
    assert admit(StreamKind.ALLOCATION, gone.SerializeToString(), "rm", LIMITS).rejected == 0


@pytest.mark.parametrize("name", HIDDEN.values(), ids=HIDDEN)
def test_no_rm_has_such_a_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match="expected visible characters"):
        admit_registration(si_pb2.RegisterResourceManagerRequest(rmID=name).SerializeToString(), LIMITS)
