"""Malformed and hostile configuration updates get a clear error or answer, change nothing and stop nothing.

The world and the books are those of ``test_bad_input.py``.
"""

from __future__ import annotations

import grpc
import pytest
from e2e.test_bad_input import (
    BAD_QUANTITY,
    BAD_QUEUE_NAME,
    BAD_YAML,
    LONG,
    NODE,
    QUEUES,
    VICTIM,
    WITNESS,
    Code,
    Outcome,
    Send,
    World,
    _witness_is_served,
    raw_unary,
    world,
)
from integration.gateway_rig import PATIENCE_S
from muster_proto.muster.v1 import admin_pb2
from muster_proto.si.v1 import si_pb2

__all__ = ["world"]  # the fixture

REFUSED, DONE = "refused", "done"
METHOD = "/muster.v1.Admin/UpdateConfiguration"


def update(config: str = QUEUES, rm_id: str = VICTIM, **fields: object) -> Send:
    """Gives REFUSED and the problems, each as its place and words, or the status of the call."""

    async def send(world: World) -> Outcome:
        request = si_pb2.UpdateConfigurationRequest(rmID=rm_id, config=config, **fields)  # type: ignore[arg-type]
        try:
            answer = await world.channel.admin.UpdateConfiguration(request, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        assert bool(answer.changes) <= answer.accepted
        return (DONE if answer.accepted else REFUSED), "\n".join(
            f"{admin_pb2.ConfigurationProblem.Severity.Name(each.severity)} {each.path} {each.line}:{each.column} "
            f"{each.message}"
            for each in answer.problems
        )

    return send


def with_leaf(text: str) -> str:
    return QUEUES.replace("          - name: parent\n            parent: true\n", text)


CASES: list[tuple[str, Send, Code | str, str]] = [
    # the call
    ("not protobuf", raw_unary(METHOD, b"\xff\xff"), Code.INVALID_ARGUMENT, "no si.v1.UpdateConfigurationRequest"),
    ("text that is no UTF-8", raw_unary(METHOD, b"\x12\x02\xff\xfe"), Code.INVALID_ARGUMENT, "UTF-8"),
    ("nothing at all", raw_unary(METHOD, b""), Code.INVALID_ARGUMENT, "rmID: empty"),
    ("unknown method", raw_unary("/muster.v1.Admin/DropEverything", b""), Code.UNIMPLEMENTED, ""),
    ("empty rmID", update(rm_id=""), Code.INVALID_ARGUMENT, "rmID: empty"),
    ("over-long rmID", update(rm_id=LONG), Code.INVALID_ARGUMENT, "expected at most 256 characters"),
    ("newline in rmID", update(rm_id="a\nb"), Code.INVALID_ARGUMENT, "expected no control characters"),
    ("RM that is not registered", update(rm_id="new"), Code.FAILED_PRECONDITION, "rmID 'new' is not registered"),
    ("over-long policyGroup", update(policyGroup=LONG), Code.INVALID_ARGUMENT, "policyGroup"),
    ("escape sequence in policyGroup", update(policyGroup="\x1b[2J"), Code.INVALID_ARGUMENT, "policyGroup"),
    (
        "600 KiB of extraConfig",
        update(extraConfig={"k": "v" * 600_000}),
        Code.INVALID_ARGUMENT,
        "extraConfig: 600001 bytes",
    ),
    (
        "5,000 entries of extraConfig",
        update(extraConfig={str(n): "" for n in range(5_000)}),
        Code.INVALID_ARGUMENT,
        "extraConfig: 5000 entries",
    ),
    (
        "larger than a record",
        update("#" * 1_000_000),
        Code.RESOURCE_EXHAUSTED,
        "(config: 1000000 characters)",
    ),
    ("over the message limit", update("#" * (2 << 20)), Code.RESOURCE_EXHAUSTED, "larger than max"),
    # the text
    ("broken YAML", update(BAD_YAML), REFUSED, " 5:"),
    ("bad queue name", update(BAD_QUEUE_NAME), REFUSED, " 6:"),
    ("negative limit", update(BAD_QUANTITY), REFUSED, " 8:"),
    ("a scalar", update("7"), REFUSED, "1:1"),
    ("a list", update("- a\n- b\n"), REFUSED, "1:1"),
    ("control character", update(QUEUES + "# \x00\n"), REFUSED, "ERROR"),
    ("anchors that multiply", update("a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n"), REFUSED, "ERROR"),
    ("a tag that makes objects", update("partitions: !!python/object/apply:os.getcwd []\n"), REFUSED, "ERROR"),
    (
        "two errors, both told",
        update(QUEUES.replace("vcore: 10", "vcore: x").replace("memory: 100", "memory: y")),
        REFUSED,
        "ERROR",
    ),
    # the text is right, and not possible now
    ("the partition with nodes goes", update(QUEUES.replace("name: default", "name: other")), REFUSED, "default"),
    (
        "a leaf with applications becomes a parent",
        update(
            QUEUES.replace(
                "              max: {vcore: 10, memory: 100}\n",
                "              max: {vcore: 10, memory: 100}\n            queues: [{name: below}]\n",
            )
        ),
        REFUSED,
        "root.a",
    ),
]


@pytest.mark.parametrize(("send", "expected", "text"), [pytest.param(s, e, t, id=n) for n, s, e, t in CASES])
async def test_a_bad_update_gets_a_clear_answer_and_changes_nothing(
    world: World, send: Send, expected: Code | str, text: str
) -> None:
    before = await world.state(VICTIM)
    stream = world.open(NODE, WITNESS)
    outcome, story = await send(world)
    assert outcome == expected, story
    assert text in story
    assert "Traceback" not in story
    stream.cancel()
    await _witness_is_served(world)
    assert await world.state(VICTIM) == before
    assert await world.state("new") == {}


async def test_two_errors_are_both_reported(world: World) -> None:
    outcome, story = await update(QUEUES.replace("vcore: 10", "vcore: x").replace("memory: 100", "memory: y"))(world)
    assert outcome == REFUSED
    assert len([line for line in story.splitlines() if line.startswith("ERROR")]) == 2, story


async def test_a_good_update_after_many_bad_ones_is_taken(world: World) -> None:
    for text in (BAD_YAML, BAD_QUEUE_NAME, BAD_QUANTITY) * 5:
        assert (await update(text)(world))[0] == REFUSED
    outcome, story = await update(with_leaf("          - name: fresh\n"))(world)
    assert outcome == DONE, story
    await _witness_is_served(world)
