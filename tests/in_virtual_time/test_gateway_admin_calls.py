"""Errors of muster.v1.Admin over real gRPC: bad requests, unknown RMs, no answer. They change nothing, and the streams
continue."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from integration.gateway_rig import PATIENCE_S, Channel, Rig, scheduler_silent
from muster_bus.clock import Clock
from muster_gateway.errors import SessionStoreDown
from muster_gateway.service import Gateway
from muster_gateway.sessions.contract import Cursor, SessionStore
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.v1 import admin_pb2 as pb
from muster_proto.si.v1 import si_pb2
from starlette.types import Receive, Scope, Send
from virtual.plugin import advance

Code = grpc.StatusCode
LONG = "x" * 257
RM = "rm"


class FakeView:
    """A view with the test's answers.

    :ivar answers: status and body by the end of the path; None: no answer before ``goes_on``, and an error then.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes] | None] = {
            "resource-managers": (200, b"[]"),
            "partitions": (200, b'[{"name":"default"}]'),
            "configuration": (200, b'{"config":"x"}'),
            "clusters": (200, b"[]"),
            "queues": (200, b"{}"),
        }
        self.asked: list[str] = []
        self.goes_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path != "/health":  # (which the gateway asks by itself)
            self.asked.append(f"{path}?{scope['query_string'].decode()}")
        found = next((each for end, each in self.answers.items() if path.endswith(end)), (200, b"[]\n"))
        if found is None:
            await self.goes_on.wait()
            found = (503, b"")
        status, body = found
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def view() -> FakeView:
    return FakeView()


async def with_view(world: Rig, view: FakeView, sessions: SessionStore, **timeouts: float) -> Gateway:
    """A gateway with that view."""
    settings = GatewaySettings(
        grpc_address="127.0.0.1:0",
        http_address="",
        **{"registration_timeout_s": PATIENCE_S, "view_timeout_s": PATIENCE_S, **timeouts},  # type: ignore[arg-type]
        view_answer_bytes=1024,
        cursor_flush_ms=10,
        stop_grace_s=0.05,
    )
    gateway = Gateway(settings, world.log, world.topics, sessions, world.clock, view=view)
    await gateway.start()
    world.gateways.append(gateway)
    return gateway


@pytest.fixture
async def channel(world: Rig, view: FakeView) -> Channel:
    """A client of such a gateway, with a registered RM."""
    return await world.registered(await with_view(world, view, world.sessions), RM)


@pytest.fixture
async def impatient(world: Rig, view: FakeView) -> Channel:
    """The same with short timeouts, for tests that wait for their end."""
    timeouts = {"registration_timeout_s": 5.0, "view_timeout_s": 0.3}
    return await world.registered(await with_view(world, view, world.sessions, **timeouts), RM)


async def refusal(call: Awaitable[Any]) -> tuple[Code, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def dumped(channel: Channel, rm_id: str = RM) -> bytes:
    call = channel.admin.DumpState(pb.DumpStateRequest(rm_id=rm_id), timeout=PATIENCE_S)
    return b"".join([piece.json async for piece in call])


def explain(**about: Any) -> Callable[[Channel], Awaitable[Any]]:
    request = pb.ExplainRequest(**{"rm_id": RM, **about})
    return lambda channel: channel.admin.Explain(request, timeout=PATIENCE_S)


def pause(**fields: Any) -> Callable[[Channel], Awaitable[Any]]:
    return lambda channel: channel.admin.PauseResourceManager(
        pb.PauseResourceManagerRequest(**fields), timeout=PATIENCE_S
    )


def drain(**fields: Any) -> Callable[[Channel], Awaitable[Any]]:
    request = pb.DrainNodeRequest(**{"rm_id": RM, "node_id": "n", **fields})
    return lambda channel: channel.admin.DrainNode(request, timeout=PATIENCE_S)


def end(**fields: Any) -> Callable[[Channel], Awaitable[Any]]:
    request = pb.EndApplicationRequest(**{"rm_id": RM, "application_id": "x", **fields})
    return lambda channel: channel.admin.EndApplication(request, timeout=PATIENCE_S)


def of_rm(method: str, rm_id: str) -> Callable[[Channel], Awaitable[Any]]:
    requests: dict[str, Any] = {
        "PauseResourceManager": pb.PauseResourceManagerRequest,
        "ResumeResourceManager": pb.ResumeResourceManagerRequest,
        "DrainNode": pb.DrainNodeRequest,
        "EndApplication": lambda rm_id: pb.EndApplicationRequest(rm_id=rm_id, application_id="x"),
        "Explain": pb.ExplainRequest,
        "ListResourceManagers": pb.ListResourceManagersRequest,
        "ValidateConfiguration": lambda rm_id: si_pb2.UpdateConfigurationRequest(rmID=rm_id),
    }
    if method == "DumpState":
        return lambda channel: dumped(channel, rm_id)
    request = requests[method](rm_id=rm_id)
    return lambda channel: getattr(channel.admin, method)(request, timeout=PATIENCE_S)


METHODS = [
    "PauseResourceManager", "ResumeResourceManager", "DrainNode", "EndApplication", "Explain", "DumpState",
    "ValidateConfiguration", "ListResourceManagers",
]  # fmt: skip
ASK = pb.AskId(application_id="x", allocation_key="k")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("rm_id", "said"),
    [
        ("", ": empty, expected 1 to 256 characters"),
        (LONG, "(257 characters), expected at most 256 characters"),
        ("a\nb", ": 'a\\nb', expected no control characters"),
    ],
)
async def test_a_bad_rm_id_is_named(channel: Channel, world: Rig, method: str, rm_id: str, said: str) -> None:
    if method == "ListResourceManagers" and not rm_id:
        return  # all RMs
    requests = len(world.scheduler.requests)
    code, details = await refusal(of_rm(method, rm_id)(channel))
    assert code is Code.INVALID_ARGUMENT
    assert details.startswith("rmID" if method == "ValidateConfiguration" else "rm_id")
    assert details.endswith(said)
    assert len(world.scheduler.requests) == requests


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (pause(rm_id=RM, reason=LONG), "reason: 'xxx"),
        (pause(rm_id=RM, reason="a\x00b"), "reason: 'a\\x00b', expected no control characters"),
        (drain(node_id=""), "node_id: empty, expected 1 to 256 characters"),
        (drain(node_id=LONG), "node_id: 'xxx"),
        (end(application_id=""), "application_id: empty, expected 1 to 256 characters"),
        (end(partition=LONG), "partition: 'xxx"),
        (end(reason="x" * 257), "reason: "),
        (drain(partition=LONG), "partition: 'xxx"),
        (drain(partition="a\tb"), "partition: 'a\\tb', expected no control characters"),
        (explain(), "about: not set, expected one of ask, application_id, queue, node_id, preemption"),
        (explain(ask=pb.AskId(application_id="x")), "ask.allocation_key: empty, expected 1 to 256 characters"),
        (explain(ask=pb.AskId(allocation_key="x")), "ask.application_id: empty, expected 1 to 256 characters"),
        (explain(preemption=pb.AskId(application_id="x", allocation_key=LONG)), "preemption.allocation_key: 'xxx"),
        (explain(application_id=""), "application_id: empty, expected 1 to 256 characters"),
        (explain(application_id=LONG), "application_id: 'xxx"),
        (explain(queue=""), "queue: empty, expected 1 to 1024 characters"),
        (explain(queue="x" * 1025), "queue: 'xxx"),
        (explain(node_id="\x7f"), "node_id: '\\x7f', expected no control characters"),
        (explain(ask=ASK, partition=LONG), "partition: 'xxx"),
    ],
)
async def test_a_bad_field_is_named_with_what_was_expected(
    channel: Channel, world: Rig, view: FakeView, call: Callable[[Channel], Awaitable[Any]], said: str
) -> None:
    requests = len(world.scheduler.requests)
    code, details = await refusal(call(channel))
    assert code is Code.INVALID_ARGUMENT
    assert details.startswith(said)
    assert len(details) < 300
    assert len(world.scheduler.requests) == requests
    assert view.asked == []


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_request(channel: Channel, method: str) -> None:
    kind = channel.grpc.unary_stream if method == "DumpState" else channel.grpc.unary_unary
    call = kind(f"/muster.v1.Admin/{method}")(b"\xff\xff\xff", timeout=PATIENCE_S)

    async def result() -> Any:
        return [each async for each in call] if method == "DumpState" else await call

    code, details = await refusal(result())
    assert code is Code.INVALID_ARGUMENT
    assert details.startswith("3 bytes that are no ")


@pytest.mark.parametrize("method", METHODS)
async def test_an_unknown_rm_is_refused(channel: Channel, method: str) -> None:
    call: Callable[[Channel], Awaitable[Any]] = of_rm(method, "nobody")
    if method == "DrainNode":
        call = drain(rm_id="nobody")
    elif method == "Explain":
        call = explain(rm_id="nobody", ask=ASK)
    code, details = await refusal(call(channel))
    if method == "DumpState":
        assert (code, details) == (Code.NOT_FOUND, "rmID 'nobody' is not known")
    else:
        assert code is Code.FAILED_PRECONDITION
        assert details == "rmID 'nobody' is not registered: call RegisterResourceManager first"


@pytest.mark.parametrize("call", [pause(rm_id=RM), drain(), end(), of_rm("ValidateConfiguration", RM)])
async def test_a_scheduler_that_does_not_answer(
    impatient: Channel, world: Rig, call: Callable[[Channel], Awaitable[Any]]
) -> None:
    stream = impatient.open(StreamKind.NODE, RM)
    await world.scheduler.emit(RM, [StreamKind.NODE])
    await stream.take(1)
    world.scheduler.mute = True
    code, details = await refusal(call(impatient))
    assert code is Code.UNAVAILABLE
    assert re.fullmatch(f"{scheduler_silent()}: ask again", details)
    world.scheduler.mute = False
    await world.scheduler.emit(RM, [StreamKind.NODE])
    await stream.take(1)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ((503, b""), Code.UNAVAILABLE, "the view is not reachable"),
        ((500, b"oops"), Code.UNAVAILABLE, "the view does not know it yet (500): try again"),
        ((404, b'{"message":"Resource manager not found: \'rm\'"}'), Code.UNAVAILABLE, "does not know it yet"),
        ((404, b'{"message":"Node not found"}'), Code.NOT_FOUND, "node_id 'n' in partition 'p': Node not found"),
        ((400, b'{"message":"odd"}'), Code.INVALID_ARGUMENT, "node_id: odd"),
        (
            (200, b'{"message":"' + b"x" * 2000 + b'"}'),
            Code.RESOURCE_EXHAUSTED,
            "over 1,024 bytes: ask /ws/v1/explain/",
        ),
    ],
)
async def test_a_view_that_has_no_answer(
    channel: Channel, view: FakeView, answer: tuple[int, bytes], code: Code, said: str
) -> None:
    view.answers = {"explain/node/n": answer}
    found, details = await refusal(explain(node_id="n", partition="p")(channel))
    assert found is code
    assert said in details
    assert view.asked == ["/ws/v1/explain/node/n?rm=rm&partition=p"]


async def test_a_view_that_does_not_answer(impatient: Channel, view: FakeView) -> None:
    view.answers = {"explain/node/n": None}
    code, details = await refusal(explain(node_id="n", partition="p")(impatient))
    assert code is Code.UNAVAILABLE
    assert "0.3 s" in details


async def test_a_preempted_allocation_is_named_by_its_key_alone(channel: Channel, view: FakeView) -> None:
    view.answers = {"explain/preemption/a/b": (200, b'{"message":"It must go."}')}
    found = await explain(preemption=pb.AskId(allocation_key="a/b"))(channel)
    assert view.asked == ["/ws/v1/explain/preemption/a/b?rm=rm&partition=default"]
    assert list(found.sentences) == ["It must go."]


async def test_an_explanation_has_the_views_json_and_sentences(channel: Channel, view: FakeView) -> None:
    body = b'{"message":"One.","asks":[{"allocationKey":"k","message":"Two."}]}\n'
    view.answers = {"explain/application/a/b": (200, body)}
    found = await explain(application_id="a/b")(channel)
    assert (found.json, list(found.sentences)) == (body, ["One.", "k: Two."])
    assert view.asked == ["/ws/v1/explain/application/a/b?rm=rm&partition=default"]


async def test_very_many_sentences_are_cut(channel: Channel, view: FakeView) -> None:
    asks = b",".join(b'{"allocationKey":"","message":""}' for _ in range(20))
    view.answers = {"application/x": (200, b'{"message":"","asks":[%b]}' % asks)}
    assert len((await explain(application_id="x")(channel)).sentences) == 21


@pytest.mark.parametrize("path", ["resource-managers", "partitions", "applications/active", "nodes"])
@pytest.mark.parametrize("answer", [(503, b""), (500, b"oops"), (200, b"")])
async def test_a_dump_that_breaks_off_is_an_error(
    channel: Channel, view: FakeView, path: str, answer: tuple[int, bytes]
) -> None:
    view.answers[path] = answer
    code, details = await refusal(dumped(channel))
    assert code is Code.UNAVAILABLE, details


@pytest.mark.parametrize("path", ["resource-managers", "partitions", "applications/active", "nodes"])
async def test_a_dump_without_an_answer_is_an_error(impatient: Channel, view: FakeView, path: str) -> None:
    view.answers[path] = None
    code, details = await refusal(dumped(impatient))
    assert code is Code.UNAVAILABLE, details


async def test_so_many_dumps_are_made_at_once(channel: Channel, world: Rig, view: FakeView) -> None:
    view.answers["nodes"] = None
    admin = world.gateways[-1]._admin
    assert admin is not None
    begun = [asyncio.create_task(refusal(dumped(channel))) for _ in range(4)]
    await advance()
    assert admin._dumps == 4, "four are made"
    code, details = await refusal(dumped(channel))
    assert (code, details) == (
        Code.RESOURCE_EXHAUSTED,
        "4 dumps are made already, expected at most 4 at once: try again",
    )
    view.goes_on.set()
    assert {code for code, _ in await asyncio.gather(*begun)} == {Code.UNAVAILABLE}
    await advance()
    assert admin._dumps == 0, "they are over"
    view.goes_on.clear()
    call = asyncio.create_task(dumped(channel))
    await advance()
    assert admin._dumps == 1, "there is room again"
    call.cancel()
    await advance()
    assert admin._dumps == 0, "who leaves makes room"


async def test_a_gateway_that_stops_says_so(world: Rig, channel: Channel) -> None:
    gateway = world.gateways[-1]
    assert gateway._admin is not None
    gateway._admin.stopping = True
    for call in (pause(rm_id=RM), explain(ask=ASK), lambda c: dumped(c)):
        code, details = await refusal(call(channel))
        assert code is Code.UNAVAILABLE
        assert "stopping" in details


async def test_a_session_store_that_is_away(world: Rig, channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> Any:
        raise SessionStoreDown("the session store does not answer")

    for name in ("get", "all"):
        monkeypatch.setattr(world.sessions, name, away)
    for method in METHODS:
        call = drain() if method == "DrainNode" else explain(ask=ASK) if method == "Explain" else of_rm(method, RM)
        code, _ = await refusal(call(channel))
        assert code is Code.UNAVAILABLE, method


class NarrowStore(MemorySessions):
    """A store with few connections. Like Redis' client with its hundred, it refuses a call when none is free."""

    CONNECTIONS = 10

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._taken = 0

    async def cursors(self, rm_id: str) -> dict[StreamKind, Cursor]:
        self._taken += 1
        try:
            if self._taken > self.CONNECTIONS:
                raise SessionStoreDown("the session store has no connection left")
            await asyncio.sleep(0)
            return await super().cursors(rm_id)
        finally:
            self._taken -= 1


async def test_many_resource_managers_are_listed_with_few_connections_to_the_store(world: Rig, view: FakeView) -> None:
    gateway = await with_view(world, view, NarrowStore(world.clock))
    names = [f"rm-{number:03}" for number in range(3 * NarrowStore.CONNECTIONS)]
    channel = world.channel(gateway)
    for name in names:
        await channel.register(name)
    found = await channel.admin.ListResourceManagers(pb.ListResourceManagersRequest(), timeout=PATIENCE_S)
    assert [each.rm_id for each in found.resource_managers] == names
