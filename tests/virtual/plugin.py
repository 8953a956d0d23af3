"""Runs the tests of a folder in virtual time. Its conftest imports what is here:

    from virtual.plugin import *  # noqa: F403

Each test has a :class:`VirtualLoop` of its own, and ports without sockets. Clocks read the time of the loop, ids are
drawn from the seed, queue configurations are read in the loop. The seed is that of ``MUSTER_SEED`` and of the test's
name; a failure prints it.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from random import Random
from typing import Any

import grpc.aio
import httpx
import muster_event_publisher.service
import muster_gateway.connection_guard
import muster_gateway.doors
import muster_replay.local_process
import muster_view.service
import pytest
from muster_bus.clock import SystemClock
from muster_client import chance as client_chance
from muster_queue_config.sandboxed_parser import SandboxedParser
from muster_runtime import chance

from virtual import module_state, stores
from virtual.loop import VirtualLoop
from virtual.ports import Ports
from virtual.sandbox import InlineReading

__all__ = [
    "ports",
    "pytest_asyncio_loop_factories",
    "pytest_runtest_makereport",
]

SEED = "MUSTER_SEED"
BEGAN_NS = 1_750_000_000_000_000_000


def seed() -> str:
    """Returns the seed of this run."""
    return os.environ.get(SEED, "1")


async def advance(seconds: float = 5.0) -> None:
    """Lets virtual time pass: what was under way is done. It costs no time."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop), "only virtual time passes at once"
    await asyncio.sleep(seconds)


def now_s() -> float:
    """Returns virtual time; without a loop it is that of the begin."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives each test a loop of its own seed."""
    return {"virtual": lambda: VirtualLoop(f"{seed()}/{item.nodeid}")}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Names the seed of a failure."""
    report = yield
    if report.failed:
        report.sections.append(("virtual time", f"{SEED}={seed()} repeats it"))
    return report


@pytest.fixture(autouse=True)
def ports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ports]:
    """The test's ports. All that would use a socket uses them; all that would read a clock reads the loop's."""
    dice = Random(f"{seed()}/{request.node.nodeid}")
    made = Ports(dice)
    replaced: list[tuple[Any, str, Any]] = [
        (grpc.aio, "insecure_channel", made.channel),
        (grpc.aio, "server", made.server),
        (httpx, "AsyncHTTPTransport", made.transport),
        (httpx._client, "AsyncHTTPTransport", made.transport),
        (muster_gateway.connection_guard, "AcceptedSockets", _no_sockets),
        (muster_replay.local_process, "free_ports", made.free),
        (uuid, "uuid4", lambda: uuid.UUID(int=dice.getrandbits(128), version=4)),
        (SystemClock.__init__, "__defaults__", _clock_of_the_loop()),
        (SandboxedParser.__init__, "__defaults__", (InlineReading,)),
    ]
    servers = (muster_gateway.doors, muster_view.service, muster_event_publisher.service)
    replaced += [(module, "HttpServer", made.http_server) for module in servers]
    for source in (chance.SYSTEM, client_chance.SYSTEM):
        replaced += [(source, name, getattr(dice, name)) for name in ("random", "getrandbits", "randbytes")]
    for place, name, what in replaced:
        monkeypatch.setattr(place, name, what)
    module_state.reset()
    yield made
    module_state.reset()
    stores.forget()


def _clock_of_the_loop() -> tuple[Any, ...]:
    """The arguments that a clock has unless told otherwise: wall, elapsed, boot id, monotonic, processor."""
    return (lambda: BEGAN_NS + round(now_s() * 1e9)), (lambda: round(now_s() * 1e9)), "virtual", now_s, now_s


def _no_sockets(_: object) -> None:
    raise OSError("there are no sockets in virtual time")
