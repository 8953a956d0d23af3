"""The two ends of the HTTP front in the followers' process: who accepts, and what is passed to the deciding process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from manual_clock import ManualClock
from muster_cli import followers_front
from muster_cli.followers_front import GatewayBackend
from muster_cli.followers_handover import FrontHandover
from muster_cli.followers_messages import CloseFront, Forwarded, FrontState, OpenFront, Response
from muster_gateway.http_bodies import HeldBodies
from muster_runtime.caller import Caller, calling, current
from muster_runtime.identity import Identity, Proof, Role, rights_of
from starlette.types import Message, Receive, Scope, Send

OPS = Identity("ops", rights_of(Role.ADMIN), Proof.TOKEN)
SCOPE: Scope = {
    "type": "http", "method": "POST", "path": "/ws/v1/operate/pause", "raw_path": b"/ws/v1/operate/pause",
    "query_string": b"rm=x", "headers": [(b"host", b"localhost")],
}  # fmt: skip


class Pipe:
    """One end: what was sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Server:
    """The deciding process's own server."""

    def __init__(self) -> None:
        self.accepts = True

    def pause(self) -> None:
        self.accepts = False

    def resume(self) -> None:
        self.accepts = True


async def _nobody(_caller: Caller, scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AssertionError(scope["path"])


async def test_only_one_of_both_accepts_and_the_deciding_process_if_in_doubt() -> None:
    heard, pipe, server = True, Pipe(), Server()
    handover = FrontHandover(lambda: heard, 0.0)
    handover.on_child_started(pipe)  # type: ignore[arg-type]
    assert pipe.sent == [], "the gateway does not serve yet"
    assert await handover.is_decided(), "nothing is open"
    handover.open("g", _nobody, server)  # type: ignore[arg-type]
    assert pipe.sent == [OpenFront("g")]
    assert server.accepts
    assert not await handover.is_decided()
    for state, accepts in ((FrontState.FAILED, True), (FrontState.OPEN, False), (FrontState.CLOSED, True)):
        handover.on_child_reported(state)
        assert server.accepts is accepts
    handover.on_child_reported(FrontState.OPEN)
    heard = False
    handover.check()
    assert server.accepts, "a child that hangs serves nobody"
    heard = True
    handover.on_child_reported(FrontState.OPEN)
    assert not server.accepts
    handover.on_child_ended()
    assert server.accepts
    # The next child is invited at once.
    following = Pipe()
    handover.on_child_started(following)  # type: ignore[arg-type]
    assert following.sent == [OpenFront("g")]
    handover.on_child_reported(FrontState.OPEN)
    closing = asyncio.create_task(handover.close())
    await asyncio.sleep(0)
    assert following.sent[-1] == CloseFront()
    handover.on_child_reported(FrontState.CLOSED)
    await asyncio.wait_for(closing, 60)
    assert not server.accepts, "a gateway that stops accepts nothing more"


async def test_a_request_is_answered_for_the_caller_that_the_child_proved() -> None:
    pipe, seen = Pipe(), list[Caller]()

    async def answer(caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(caller)
        body = (await receive())["body"]
        if not body:
            raise ValueError("a defect")
        caller.carried = True
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": scope["query_string"]})

    handover = FrontHandover(lambda: True, 0.0)
    handover.on_child_started(pipe)  # type: ignore[arg-type]
    handover.open("g", answer, Server())  # type: ignore[arg-type]
    pipe.sent.clear()
    child = Pipe()
    backend = GatewayBackend(child, 10, HeldBodies(), ManualClock())  # type: ignore[arg-type]
    caller, got = Caller(OPS, "192.0.2.7", "http", "POST /ws/v1/operate/pause", b"digest"), list[Message]()

    async def send(message: Message) -> None:
        got.append(message)

    bodies = [b"0123456789abc", b"defgh"]

    async def receive() -> Message:
        return {"type": "http.request", "body": bodies.pop(0), "more_body": bool(bodies)}

    with calling(caller):
        asking = asyncio.create_task(backend.answer(SCOPE, receive, send))
        while not child.sent:  # noqa: ASYNC110
            await asyncio.sleep(0)
        handover.forward(child.sent[0])
        while not pipe.sent:  # noqa: ASYNC110
            await asyncio.sleep(0)
        backend.on_response(pipe.sent[0])
        await asyncio.wait_for(asking, 60)
    assert (seen[0].identity, seen[0].peer, seen[0].credential) == (OPS, "192.0.2.7", b"digest")
    assert caller.carried, "the scheduler writes the audit entry, so the child writes none"
    # (One byte more than the limit, by which the gateway sees that the body is too large.)
    assert (got[0]["status"], got[1]["body"]) == (201, b"0123456789arm=x")
    empty = Forwarded(9, child.sent[0].caller, "POST", "/x", b"/x", b"", (), b"")
    handover.forward(empty)
    while len(pipe.sent) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (pipe.sent[1].number, pipe.sent[1].status) == (9, 500)
    assert current() is not caller


async def test_a_deciding_process_that_does_not_answer_is_neither_live_nor_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = GatewayBackend(Pipe(), 10, HeldBodies(), ManualClock())  # type: ignore[arg-type]
    for name in ("_HEALTH_TIMEOUT_S", "_METRICS_TIMEOUT_S"):
        monkeypatch.setattr(followers_front, name, 0.01)
    assert not await backend.live()
    silence = "the deciding process has not answered for 0.01 s"
    assert await backend.ready() == (False, [silence])
    state = await backend.health()
    assert (state.grade, state.part, state.sentence) == ("failed", "gateway", silence)
    assert "restart it" in state.remedy
    with pytest.raises(OSError, match="does not answer"):
        await backend.exposition()
    assert not backend._waiting
    backend.on_response(Response(1, 200, (), b"late"))


async def test_requests_to_the_deciding_process_are_bounded() -> None:
    child = Pipe()
    backend = GatewayBackend(child, 10, HeldBodies(), ManualClock())  # type: ignore[arg-type]
    got = list[Message]()

    async def send(message: Message) -> None:
        got.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    most = followers_front._FORWARDED_MAX
    waiting = [asyncio.create_task(backend.answer(SCOPE, receive, send)) for _ in range(most)]
    while len(child.sent) < most:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await backend.answer(SCOPE, receive, send)
    assert (got[0]["status"], len(child.sent)) == (503, most)
    assert (b"retry-after", b"1") in got[0]["headers"]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not backend._waiting
