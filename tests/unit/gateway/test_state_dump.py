"""A dump is composed of a view's answers, cut at any place, with only a few pieces in memory."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from muster_gateway.codec import CommandAnswer, CommandCode
from muster_gateway.errors import OverLimit, SchedulerTimeout, ViewUnavailable
from muster_gateway.state_dump import NO_CALLBACK, StateDump
from muster_gateway.view_client import PIECE_BYTES, ViewClient
from starlette.types import Receive, Scope, Send


class CutView:
    """Answers by path, cut at random places. The list of ``endless`` nodes never ends.

    :ivar sent: messages that were taken from it.
    """

    def __init__(self, seed: int, answers: dict[str, Any]) -> None:
        self._dice, self._answers = random.Random(seed), answers
        self.endless = False
        self.sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"].removeprefix("/ws/v1/")
        found = self._answers.get(path)
        status = 404 if found is None else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        if self.endless and path.endswith("/nodes"):
            await send({"type": "http.response.body", "body": b"[", "more_body": True})
            while True:
                await send({"type": "http.response.body", "body": b"1," * PIECE_BYTES, "more_body": True})
                self.sent += 1
        text = json.dumps(found).encode() + b"\n"
        while text:
            size = self._dice.choice([0, 1, 1, 2, 3, 7, 50, 100_000])
            await send({"type": "http.response.body", "body": text[:size], "more_body": True})
            text = text[size:]
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def answers(partitions: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """:param partitions: how many applications of each kind, and nodes."""
    found: dict[str, Any] = {
        "partitions": [{"name": name} for name in partitions],
        "resource-manager/configuration": {"config": "text ü\n"},
        "clusters": [{"partition": name} for name in partitions],
        "external": [{"source": "vms"} for _ in partitions],
    }
    for name, (applications, nodes) in partitions.items():
        at = f"partition/{name}"
        found[f"{at}/queues"] = {"queuename": "root", "partition": name}
        for state in ("active", "completed", "rejected"):
            found[f"{at}/applications/{state}"] = [f"{name} {state} ]\n {number}" for number in range(applications)]
        found[f"{at}/nodes"] = [{"nodeID": f"{name}{number}"} for number in range(nodes)]
        found[f"{at}/placementrules"] = [{"name": "provided"}]
    return found


def dump(view: CutView, ask_rm: Any = None, manager: dict[str, Any] | None = None) -> StateDump:
    return StateDump(ViewClient(view, 10.0, 1 << 20), "rm", manager or {"rm_id": "rm"}, 7, ask_rm)


async def read(of: StateDump) -> tuple[dict[str, Any], list[bytes]]:
    pieces = [piece async for piece in of.pieces()]
    found: dict[str, Any] = json.loads(b"".join(pieces))
    return found, pieces


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "partitions",
    [{}, {"default": (0, 0)}, {"default": (1, 1)}, {"a": (0, 0), "b": (2, 0), "c": (0, 3)}, {"a": (3, 2), "b": (0, 0)}],
)
async def test_however_the_answers_are_cut_the_dump_is_whole(seed: int, partitions: dict[str, tuple[int, int]]) -> None:
    given = answers(partitions)
    found, _ = await read(dump(CutView(seed, given)))
    listed = [f"partition/{name}" for name in partitions]
    assert found == {
        "timestamp": 7,
        "resourceManager": {"rm_id": "rm"},
        "partitions": given["partitions"],
        "config": "text ü\n",
        "clusterInfo": given["clusters"],
        "queues": [given[f"{at}/queues"] for at in listed],
        "applications": [
            each for at in listed for state in ("active", "completed", "rejected")
            for each in given[f"{at}/applications/{state}"]
        ],
        "nodes": [{"partitionName": name, "nodesInfo": given[f"partition/{name}/nodes"]} for name in partitions],
        "placementRules": [{"partition": name, "rules": [{"name": "provided"}]} for name in partitions],
        "externalSources": [{"source": "vms"} for _ in partitions],
        "rmDiagnostics": NO_CALLBACK,
    }  # fmt: skip


async def test_a_partition_that_goes_meanwhile_is_left_out() -> None:
    given = answers({"a": (1, 1), "b": (1, 1), "c": (1, 1)})
    gone = {path: each for path, each in given.items() if not path.startswith("partition/b/")}
    found, _ = await read(dump(CutView(1, gone)))
    assert [each["partition"] for each in found["queues"]] == ["a", "c"]
    assert [each["nodesInfo"] for each in found["nodes"]] == [[{"nodeID": "a0"}], [], [{"nodeID": "c0"}]]


async def test_pieces_are_small_whatever_the_size() -> None:
    _, pieces = await read(dump(CutView(1, answers({"default": (5_000, 5_000)}))))
    assert len(pieces) > 5
    assert {len(piece) for piece in pieces[:-1]} == {PIECE_BYTES}
    assert 0 < len(pieces[-1]) <= PIECE_BYTES


async def test_parts_that_are_not_read_are_not_fetched() -> None:
    view = CutView(1, answers({"default": (1, 1)}))
    view.endless = True
    pieces = dump(view).pieces()
    for _ in range(10):
        await anext(pieces)
        for _ in range(50):
            await asyncio.sleep(0)
    assert view.sent <= 10
    await pieces.aclose()  # type: ignore[attr-defined]


async def test_a_list_that_is_cut_off_is_no_dump() -> None:
    class Cut(CutView):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def shorter(message: Any) -> None:
                if scope["path"].endswith("/nodes") and message["type"] == "http.response.body":
                    message = {**message, "body": message["body"].replace(b"]", b"")}
                await send(message)

            await super().__call__(scope, receive, shorter)

    with pytest.raises(ViewUnavailable, match="broke off"):
        await read(dump(Cut(1, answers({"default": (1, 1)}))))


# ---- the RM's own dump ----------------------------------------------------------------------------------------------

NO_JSON = "the resource manager's dump of %d characters is not JSON"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (CommandAnswer("r", CommandCode.OK, json='{"a": ["ü"], "token": "hunter2"}'), {"a": ["ü"], "token": "***"}),
        (CommandAnswer("r", CommandCode.OK, json="[1]"), [1]),
        (CommandAnswer("r", CommandCode.OK, json="1" + "0" * 400), 10**400),
        (CommandAnswer("r", CommandCode.OK, json=""), {"error": NO_JSON % 0}),
        (CommandAnswer("r", CommandCode.OK, json='token: "x"'), {"error": NO_JSON % 10}),
        (CommandAnswer("r", CommandCode.OK, json="[" * 100_000), None),
        (CommandAnswer("r", CommandCode.OK, json='"\\ud800"'), None),
        (CommandAnswer("r", CommandCode.OK, json="NaN"), None),
        (CommandAnswer("r", CommandCode.NOT_POSSIBLE, "not now"), {"error": "not now"}),
        (CommandAnswer("r", CommandCode.NOT_POSSIBLE, NO_CALLBACK["empty"]), NO_CALLBACK),
        (
            SchedulerTimeout("the scheduler did not answer within 10 s: ask again"),
            {"error": "the resource manager rm did not answer, and no scheduler said why: make another dump"},
        ),
        (OverLimit("no answer"), {"error": "no answer"}),
        (CommandAnswer("r", CommandCode.NOT_POSSIBLE, "url a://b:hunter2@c"), {"error": "url a://b:***@c"}),
    ],
)  # fmt: skip
async def test_the_rms_own_words_come_last_and_spoil_nothing(answer: CommandAnswer | Exception, words: Any) -> None:
    async def ask_rm() -> CommandAnswer:
        if isinstance(answer, Exception):
            raise answer
        return answer

    found, _ = await read(dump(CutView(1, answers({"default": (1, 1)})), ask_rm))
    if words is None:
        assert found["rmDiagnostics"] is None or "is not JSON" in found["rmDiagnostics"]["error"]
    else:
        assert found["rmDiagnostics"] == words
    assert list(found)[-1] == "rmDiagnostics"


async def test_a_caller_that_leaves_does_not_wait_for_the_rm() -> None:
    asked = asyncio.Event()

    async def ask_rm() -> CommandAnswer:
        try:
            await asyncio.Event().wait()
        finally:
            asked.set()
        raise AssertionError("never")

    view = CutView(1, answers({"default": (1, 1)}))
    view.endless = True
    pieces = dump(view, ask_rm).pieces()
    await anext(pieces)
    await pieces.aclose()  # type: ignore[attr-defined]
    assert asked.is_set()
