"""Each part of Muster ends in turn: every reader tells the same part, its age and what to do, and is green again after.

The readers are REST, health checks, the command line, metrics, the gateway's log, the error that an RM gets, and each
view of the page in a browser.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
import servers
from certificates import Authority
from chaos.harness import Deployment, on_kafka
from e2e.full_disk import small_disk
from muster_client import node
from muster_client.access import Access
from page import world
from page.conftest import Opened
from page.readers import TIMES, VIEWS, Fault, Readers
from playwright.async_api import expect
from up import Up
from waiting import eventually
from wanting import server_wanted

pytestmark = pytest.mark.timeout(900)
PATIENCE_S = 120.0
UNSCHEDULED = "Muster decides nothing for it at present: "
QUICK = {
    "MUSTER_LOG__PARTITIONS": "2",
    "MUSTER_GATEWAY__REGISTRATION_TIMEOUT_S": "2",
    "MUSTER_GATEWAY__HEALTH_INTERVAL_S": "1",
    "MUSTER_GATEWAY__RELOAD_INTERVAL_S": "1",
}


class Addresses(NamedTuple):
    grpc: str
    http: str


async def every_reader_tells(
    readers: Readers, part: str, *, grade: str = "failed", rm: str = "", sentence: str = "", first: str = ""
) -> Fault:
    """Waits until each reader tells that this part is the worst one. Gives the fault.

    :param rm: the text with which an RM's registration fails; "": it works.
    :param sentence: its sentence has this; of several findings of a part, another one may come first for a moment.
    :param first: each of these findings has this. The log has a line at the change of the grade, with the first one.
    """

    async def found() -> Fault | None:
        state = await readers.state()
        right = state.get("part") == part and state["grade"] == grade and state["since"] <= state["checked"]
        right = right and sentence in state["sentence"]
        return Fault.of(state) if right else None

    fault: Fault = await TIMES.of("REST", eventually(found, f"REST tells of {part}", PATIENCE_S, every_s=0.1))
    assert fault.remedy
    told: dict[str, Callable[[], Awaitable[bool]]] = {
        "/health": lambda: _has(readers.text("/health"), fault.part, fault.sentence, fault.remedy),
        "healthcheck": lambda: _has(readers.text("/ws/v1/scheduler/healthcheck"), fault.sentence),
        "metrics": lambda: _has(readers.text("/metrics"), f'muster_health_grade{{part="{part}"}} '),
        "log": lambda: _has(asyncio.to_thread(readers.logs.read_text), "health changed", part, first or fault.sentence),
        "muster health": lambda: _has(_said(readers, "health", f"grpc://{readers.gateway}"), part, fault.sentence),
        "muster top": lambda: _has(_top(readers), part, fault.sentence, fault.remedy),
    }
    if rm:
        told["an RM's error"] = lambda: _has(readers.rm_error(), rm)
        told["an RM's description"] = lambda: _has(readers.text("/ws/v1/resource-managers"), UNSCHEDULED)
    await asyncio.gather(
        _views_tell(readers, fault),
        *(
            TIMES.of(name, eventually(ask, f"{name} tells of {fault}", PATIENCE_S, every_s=0.1))
            for name, ask in told.items()
        ),
    )
    return fault


async def _views_tell(readers: Readers, fault: Fault) -> None:
    for number, view in enumerate(VIEWS):
        await TIMES.of("page" if number == 0 else "page, last view", readers.page_tells(fault, view))


async def every_reader_is_green(readers: Readers) -> None:
    async def ok() -> bool:
        return (await readers.state()).get("grade") == "ok"

    async def served() -> bool:
        return (await readers.text("/health")).startswith("SERVING")

    async def healthy() -> bool:
        return (await readers.command("health", f"grpc://{readers.gateway}", *readers.flags))[0] == 0

    await TIMES.of("REST", eventually(ok, "REST is green", PATIENCE_S, every_s=0.1))
    await asyncio.gather(
        TIMES.of("page", readers.page_is_green("overview")),
        TIMES.of("/health", eventually(served, "/health is green", PATIENCE_S, every_s=0.1)),
        TIMES.of("muster health", eventually(healthy, "muster health is green", PATIENCE_S, every_s=0.1)),
        TIMES.of(
            "muster top",
            eventually(lambda: _has(_top(readers), "Muster ok"), "top is green", PATIENCE_S, every_s=0.1),
        ),
    )


async def _has(said: Awaitable[str], *wanted: str) -> bool:
    text = (await said).lower()
    return all(each.lower() in text for each in wanted)


async def _said(readers: Readers, *arguments: str) -> str:
    return (await readers.command(*arguments, *readers.flags))[1]


async def _top(readers: Readers) -> str:
    return await _said(readers, "top", "--once", "--rm", "rm", "--gateway", readers.gateway)


# ---- services on Kafka -----------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def broker(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[servers.Server]:
    """A Kafka of these tests alone."""
    with server_wanted():
        found = servers.own_local("kafka", tmp_path_factory.mktemp("broker"))
    yield found
    os.kill(found.pid, signal.SIGCONT)
    servers.stop(found)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def deployment(broker: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployment]:
    directory = tmp_path_factory.mktemp("services")
    one = on_kafka(directory, broker.address, "memory://", QUICK)
    async with one.running():
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def readers(deployment: Deployment, opened: Opened) -> AsyncIterator[Readers]:
    """The readers, with a page that is open, and an RM."""
    page = await opened(f"{deployment.http}/#/overview")
    found = Readers(deployment.gateway, deployment.http, deployment.processes["gateway"].log_file, page, rm="rm")
    async with world.Rm(Addresses(deployment.gateway, deployment.http), "rm", world.LARGE) as rm:
        await rm.client.send_nodes([node("n1", {"vcore": 8_000})])
        await every_reader_is_green(found)
        yield found


class Broken(NamedTuple):
    """How a part ends, and comes back.

    :ivar rm: the text with which an RM's registration fails meanwhile; "": it works.
    """

    part: str
    end: Callable[[Deployment, servers.Server], None]
    restore: Callable[[Deployment, servers.Server], None]
    rm: str = ""


BROKEN = {
    "no scheduler": Broken(
        "scheduler",
        lambda muster, _: muster.processes["scheduler"].kill(),
        lambda muster, _: muster.processes["scheduler"].start(),
        "no scheduler has answered for partition",
    ),
    "a view that stands still": Broken(
        "view",
        lambda muster, _: os.kill(muster.processes["view"].pid, signal.SIGSTOP),
        lambda muster, _: os.kill(muster.processes["view"].pid, signal.SIGCONT),
    ),
    "no publisher": Broken(
        "publisher",
        lambda muster, _: muster.processes["event-publisher"].kill(),
        lambda muster, _: muster.processes["event-publisher"].start(),
    ),
    "no Kafka": Broken(
        "log",
        lambda _, broker: os.kill(broker.pid, signal.SIGSTOP),
        lambda _, broker: os.kill(broker.pid, signal.SIGCONT),
        "the log",
    ),
}


@pytest.mark.kafka
@pytest.mark.parametrize("name", BROKEN)
async def test_every_reader_tells_which_service_does_not_work(
    name: str, deployment: Deployment, broker: servers.Server, readers: Readers
) -> None:
    broken = BROKEN[name]
    TIMES.begin(f"{name}: ends")
    broken.end(deployment, broker)
    try:
        await every_reader_tells(readers, broken.part, rm=broken.rm)
    finally:
        TIMES.begin(f"{name}: is back")
        await asyncio.to_thread(broken.restore, deployment, broker)
    await every_reader_is_green(readers)


@pytest.mark.kafka
async def test_an_rm_that_is_lost_while_no_scheduler_lives_is_lost_for_every_reader(
    deployment: Deployment, readers: Readers
) -> None:
    """Nobody writes it to the log, from which the view has an RM's state."""
    async with world.Rm(Addresses(deployment.gateway, deployment.http), "gone", world.LARGE) as rm:
        await rm.shows("/ws/v1/metrics/snapshot", lambda found: found["state"] == "RUNNING")
        deployment.processes["scheduler"].kill()
    try:
        for command in (("top", "--once", "--rm", "gone"), ("admin", "rms")):

            async def told(command: tuple[str, ...] = command) -> bool:
                said = await _said(readers, *command, "--gateway", readers.gateway)
                return "DISCONNECTED" in said and UNSCHEDULED in said and "placed" not in said

            await eventually(told, " ".join(command), PATIENCE_S, every_s=0.1)
    finally:
        deployment.processes["scheduler"].start()
    await every_reader_is_green(readers)


@pytest.mark.kafka
async def test_readers_without_a_gateway_say_that_it_is_away(deployment: Deployment, readers: Readers) -> None:
    page = readers.page
    await readers.show("overview")
    await expect(page.locator(".gauge")).to_have_count(1)
    TIMES.begin("no gateway: ends")
    deployment.processes["gateway"].kill()
    fault = Fault("gateway", "failed", "it does not answer this page", "start it, or repair the connection to it")
    await _views_tell(readers, fault)
    await readers.show("overview")
    await expect(page.locator("#whole")).to_contain_text("The figures below are of")
    await expect(page.locator("main")).to_have_attribute("data-old", "yes")
    code, said = await readers.command("top", "--once", "--rm", "rm", "--gateway", readers.gateway)
    assert (code, "nothing answers at" in said, "is `muster up` running?" in said) == (1, True, True), said
    code, said = await readers.command("health", f"grpc://{readers.gateway}")
    assert (code, "gateway" in said) == (1, True), said
    TIMES.begin("no gateway: is back")
    await deployment.restart("gateway")
    await every_reader_is_green(readers)


# ---- one process -----------------------------------------------------------------------------------------------------


async def test_every_reader_tells_that_the_disk_is_full(chromium: str, opened: Opened, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        muster = Up(disk.path, environment=QUICK)
        muster.process.log_file = tmp_path / "muster.log"
        try:
            await muster.start()
            readers = Readers(muster.grpc, muster.http, muster.process.log_file, await opened(muster.http))
            async with world.Rm(muster, "rm", world.LARGE) as rm:
                await every_reader_is_green(readers)
                TIMES.begin("full disk: ends")
                disk.fill()
                # (The log knows it from its first write. The client sends it again when there is room.)
                await rm.client.send_nodes([node("n", {"vcore": 1_000})])
                await every_reader_tells(
                    readers, "disk", rm="disk is full", sentence="the disk of log", first="the disk of"
                )
                await readers.show("overview")
                await expect(readers.page.get_by_role("heading", name="No node is known")).to_be_visible()
                TIMES.begin("full disk: is back")
                disk.free()
                await every_reader_is_green(readers)
        finally:
            muster.process.kill()


async def test_every_reader_tells_that_a_certificate_ends(chromium: str, opened: Opened, tmp_path: Path) -> None:
    near, far = Authority("near"), Authority("far", valid_days=20)
    certificate, key, authorities = tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem"
    authorities.write_bytes(near.pem + far.pem)
    far.server().write(certificate, key)
    tls = {"MUSTER_GATEWAY__TLS__CERTIFICATE": str(certificate), "MUSTER_GATEWAY__TLS__KEY": str(key)}
    muster = Up(tmp_path, environment={**QUICK, **tls, "MUSTER_GATEWAY__TLS__HTTP": "false"})
    access = Access(ca=authorities)
    try:
        muster.process.start()
        await muster.process.serving(muster.grpc, PATIENCE_S, access)
        page = await opened(muster.http)
        flags = ("--tls-ca", str(authorities))
        readers = Readers(muster.grpc, muster.http, muster.process.log_file, page, flags, access)
        await every_reader_is_green(readers)
        TIMES.begin("a certificate near its end: ends")
        near.server().write(certificate, key)
        await every_reader_tells(readers, "certificates", grade="degraded")
        TIMES.begin("a certificate near its end: is back")
        far.server().write(certificate, key)
        await every_reader_is_green(readers)
    finally:
        muster.process.kill()
