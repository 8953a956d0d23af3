"""The HTTP front of `muster up` in the followers' process: what reaches the deciding process, and what happens when one
of them is away.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from integration.gateway_rig import FakeScheduler
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_cli.followers_process import FollowersProcess
from muster_cli.settings import embedded_defaults, load
from muster_client import RmClient
from muster_client.access import Access
from muster_gateway.service import Gateway
from muster_gateway.sessions.memory import MemorySessions
from muster_rest.system_health import Part, SchedulerFacts
from muster_runtime.addresses import listen
from muster_runtime.http_server import HttpServer

WITHIN_S = 60.0

pytestmark = pytest.mark.timeout(2 * WITHIN_S)

OPS, READER = "ops-token-0123456789", "reader-token-0123456789"
RM = "rm-of-the-front"
LEAVERS, THREADS = 2_000, 4
OURS = {"X-Muster-Operate": "test"}
# What a client may claim to be.
FORGED = {"X-Muster-Identity": "ops", "X-Muster-Role": "admin", "X-Muster-Reach": "*"}


class Rig:
    """The deciding process is this one; its followers' process is another one."""

    def __init__(self, directory: Path, tokens: Path) -> None:
        given: dict[str, object] = {
            "gateway.http_address": "127.0.0.1:0",
            "gateway.grpc_address": "127.0.0.1:0",
            "gateway.tokens": {
                "ops": {"role": "admin", "token_file": tokens}, "reader": {"role": "read", "token": READER}
            },
            "gateway.reload_interval_s": 0.05,
        }  # fmt: skip
        settings = load(
            None, (), [(name, "", value) for name, value in given.items()], embedded_defaults(directory), {}
        ).values
        directory.mkdir()
        log = make_log(settings.log, SystemClock())
        assert isinstance(log, SqliteLog)
        self.log, self.tokens = log, tokens
        listener = listen("gateway.http_address", settings.gateway.http_address, at_once=False)
        self.port = listener.getsockname()[1]
        self.followers = FollowersProcess(
            settings, log, SystemClock(), (Part.VIEW, Part.PUBLISHER), listener=listener, wait_min_s=0.05
        )
        topics = settings.log.topics()
        self.scheduler = FakeScheduler(log, topics)
        self.gateway = Gateway(
            settings.gateway,
            log,
            topics,
            MemorySessions(SystemClock()),
            SystemClock(),
            view=self.followers.view,
            publisher=self.followers.publisher,
            events=self.followers.events,
            exposition=self.followers.exposition,
            listener=listener,
            other_front=self.followers.front,
            services=self.followers.checks(),
            scheduler=lambda: SchedulerFacts([]),
        )

    async def start(self) -> None:
        await self.log.start()
        await self.followers.open()
        await self.scheduler.start()
        await self.followers.start()
        await self.gateway.start()
        await self.child_accepts()

    async def stop(self) -> None:
        await self.gateway.stop()
        await self.followers.stop()
        await self.scheduler.stop()
        await self.followers.close()
        await self.log.close()

    @property
    def server(self) -> HttpServer:
        """The deciding process's own server of the front."""
        assert isinstance(self.gateway._http, HttpServer)
        return self.gateway._http

    async def child_accepts(self, *, does: bool = True) -> None:
        async with asyncio.timeout(WITHIN_S):
            while self.followers.front._paused is not does:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)

    async def ask(
        self, path: str, token: str = OPS, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, str, dict[str, str]]:
        """Ask over a connection of its own."""
        sent = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {}), "Connection": "close"}
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{self.port}") as session,
            session.request(method, path, headers=sent) as answer,
        ):
            return answer.status, await answer.text(), dict(answer.headers)

    async def entries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((await self.ask("/ws/v1/audit"))[1])["entries"]
        return found


R = TypeVar("R", bound=Rig)


@asynccontextmanager
async def running(kind: type[R], directory: Path) -> AsyncIterator[R]:
    tokens = directory / "token"
    tokens.write_text(OPS)
    one = kind(directory / "data", tokens)
    try:
        async with asyncio.timeout(WITHIN_S):
            await one.start()
        yield one
    finally:
        await one.stop()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(Rig, tmp_path) as one:
        yield one


def leave(port: int, count: int) -> None:
    """Connect, send a request and close, without reading."""
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /ws/v1/whoami HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


def _forwarded(rig: Rig) -> list[str]:
    """The paths of the requests that the child passes on from now on."""
    found: list[str] = []
    forward = rig.followers.front.forward

    def counted(request: Any) -> None:
        found.append(request.path)
        forward(request)

    rig.followers.front.forward = counted  # type: ignore[method-assign]
    return found


async def test_a_flood_of_clients_that_leave_reaches_the_deciding_process_with_nothing(rig: Rig) -> None:
    before, forwarded = rig.server.accepted, _forwarded(rig)
    threads = [threading.Thread(target=leave, args=(rig.port, LEAVERS // THREADS)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, WITHIN_S)
    # (The child has served them all when it answers a later one, and it works.)
    assert (await rig.ask("/ws/v1/whoami"))[0] == 200
    assert (await rig.ask("/ws/v1/partitions"))[0] == 200
    assert rig.server.accepted == before
    assert not rig.server._server.server_state.connections
    # (The front asks for the state of the whole by itself.)
    assert set(forwarded) <= {"/ws/v1/health"}


async def test_many_probes_at_once_are_one_question_to_the_deciding_process(rig: Rig) -> None:
    asked = _forwarded(rig)
    answers = await asyncio.gather(*(rig.ask(path, "") for path in ("/health", "/health/live") * 50))
    assert {(status, text) for status, text, _ in answers} == {(200, "SERVING\n")}
    # (An answer counts for a quarter of a second.)
    assert len(asked) < 50


async def test_callers_are_who_they_prove_to_be_and_each_call_has_one_audit_entry(rig: Rig) -> None:
    async with RmClient(f"127.0.0.1:{rig.gateway.grpc_port}", RM, access=Access(token=OPS)) as rm:
        await rm.register()
        path = f"/ws/v1/operate/pause?rm={RM}"
        # 1. a client's claims count for nothing
        who = json.loads((await rig.ask("/ws/v1/whoami", READER, headers=FORGED))[1])
        assert (who["identity"], who["role"], who["proof"]) == ("reader", "read", "token")
        for token, status in (("", 401), ("unknown-token-0123456789", 401), (READER, 403)):
            assert (await rig.ask(path, token, "POST", {**OURS, **FORGED}))[0] == status
        assert (await rig.ask("/debug/stack", READER, headers=FORGED))[0] == 403
        assert "HELP" in (await rig.ask("/metrics", READER))[1]
        # 2. a page of another host is refused by the deciding process, too
        assert (await rig.ask(path, OPS, "POST"))[0] == 403
        evil = {**OURS, "Origin": "http://evil.example"}
        assert (await rig.ask(path, OPS, "POST", evil))[0] == 403
        # 3. what may be done is done there, by the proven caller
        pausing = asyncio.create_task(rig.ask(path, OPS, "POST", OURS))
        async with asyncio.timeout(WITHIN_S):
            while not rig.scheduler.bodies(RM, "admin"):  # noqa: ASYNC110 - another task's list
                await asyncio.sleep(0.01)
        (caller,) = [each.caller for each in rig.scheduler.requests if each.WhichOneof("body") == "admin"]
        said = (caller.identity, caller.proof, caller.peer, caller.door, caller.method)
        assert said == ("ops", "token", "127.0.0.1", "http", "POST /ws/v1/operate/pause")
        pausing.cancel()
        await asyncio.gather(pausing, return_exceptions=True)
    # 4. the trail
    async with asyncio.timeout(WITHIN_S):
        while len(found := [each for each in await rig.entries() if "operate" in each["method"]]) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert {(each["identity"], each["result"]) for each in found} == {
        ("", "refused"), ("reader", "refused"), ("ops", "failed")
    }  # fmt: skip
    assert len({each["id"] for each in found}) == len(found)


async def test_a_token_file_is_read_again_where_callers_are_identified(rig: Rig) -> None:
    new = "another-token-0123456789"
    rig.tokens.write_text(new)
    async with asyncio.timeout(WITHIN_S):
        while [(await rig.ask("/ws/v1/partitions", each))[0] for each in (new, OPS)] != [200, 401]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_while_the_followers_are_away_the_deciding_process_answers(rig: Rig, how: str) -> None:
    gone = rig.followers.pid
    os.kill(gone, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    await rig.child_accepts(does=False)
    # (The next child may be there already.)
    while True:
        status, _, headers = await rig.ask("/ws/v1/partitions")
        assert (status, headers.get("Retry-After")) in ((503, "1"), (200, None))
        if status == 503 or rig.followers.front._paused:
            break
    assert (await rig.ask("/health", ""))[:2] == (200, "SERVING\n")
    assert (await rig.ask("/health/live", ""))[0] == 200
    assert json.loads((await rig.ask("/ws/v1/whoami", READER, headers=FORGED))[1])["identity"] == "reader"
    assert "muster_followers_process_starts_total" in (await rig.ask("/metrics"))[1]
    assert (await rig.ask("/", ""))[0] == 200
    if how == "stopped":
        os.kill(gone, signal.SIGCONT)
    await rig.child_accepts()
    before = rig.server.accepted
    async with asyncio.timeout(WITHIN_S):
        while (await rig.ask("/ws/v1/partitions"))[0] != 200:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    assert (rig.followers.pid == gone) is (how == "stopped")
    assert rig.server.accepted == before, "the port is served by the child again"


async def test_when_the_gateway_stops_open_requests_end_and_the_port_is_free(rig: Rig) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{rig.port}") as session:
        headers = {"Authorization": f"Bearer {OPS}"}
        async with session.get("/ws/v1/events/stream", headers=headers) as stream:
            assert stream.status == 200
            async with asyncio.timeout(WITHIN_S):
                await rig.gateway.stop()
                with pytest.raises(aiohttp.ClientPayloadError):
                    await stream.read()
    with listen("again", f"127.0.0.1:{rig.port}"):
        pass
    assert rig.followers.pid, "the followers take what the log has"
