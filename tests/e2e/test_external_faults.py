"""Sources that are away, lie, stammer and have wrong clocks, on real processes.

After each fault two things are looked at: what is said of it (the end of the process, health, REST, events, the log),
and that no node runs more than its source said. All RMs and sources of the first part share one Muster; each RM has a
cluster of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from chaos.harness import on_kafka
from e2e.external_rig import SILENT, ExternalUp, HttpSource, Rm, get, host, settings_text, vm, write
from waiting import eventually

POLL_S, STALE_AFTER_S = 0.2, 0.8
# For the first listings of all sources that are there, on a busy machine. One that is away is waited for as long.
SYNC_S = 8
FUTURE, PAST = "Fri, 31 Dec 2199 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"
# The RM says eight cores of ``shared``, which are there. What is left of both hosts beside the VM: three and two.
SHARED = [host("shared", 4), host("brought", 2), vm("vm-1", "shared", 1)]

NONSENSE: dict[str, tuple[int, bytes]] = {
    "nothing": (200, b""),
    "page": (200, b"<html><body>Please log in</body></html>"),
    "half": (200, json.dumps(SHARED).encode()[:-9]),
    "other": (200, b'{"hosts": []}'),
    "nan": (200, b'[{"id": "shared", "capacity": {"vcore": NaN}}]'),
    "bytes": (200, b"\xff\xfe[]"),
    "null": (200, b"null"),
    "broken": (500, b"[]"),
    "moved": (404, b"[]"),
    "hangs": (SILENT, b"[]"),
}


def http_table(rm: str, source: HttpSource, **more: object) -> dict[str, object]:
    often = {"poll_s": POLL_S, "timeout_s": 1.0, "retry_after_max_s": 0.3, "stale_after_s": STALE_AFTER_S}
    return {"kind": "http", "rm": rm, "url": source.url, **often, **more}


class World(NamedTuple):
    """One Muster, and the sources of its informers by name; an informer's RM has the same name."""

    up: ExternalUp
    sources: dict[str, HttpSource]
    file: Path

    @asynccontextmanager
    async def rm(self, name: str, **cores: int) -> AsyncIterator[Rm]:
        """An RM that has a node of its own, and knows ``shared`` with all the cores that the machine has."""
        async with self.up.rm(name) as rm:
            await rm.joins(**(cores or {"own": 1, "shared": 8}))
            yield rm

    async def state(self, name: str, wanted: str) -> dict[str, Any]:
        """What REST says of a source, once it is in such a state."""

        async def is_so() -> dict[str, Any] | None:
            said = await self.up.source(name, name)
            return said if said.get("state") == wanted else None

        found: dict[str, Any] = await eventually(is_so, f"source {name} is {wanted}")
        return found

    async def health_names(self, name: str, *, named: bool = True) -> None:
        """Returns when health names a source that is lost, or no longer does. It is looked at now and then."""

        async def is_so() -> bool:
            return (f"informer {name} (http): " in await self.up.health()) is named

        await eventually(is_so, f"health names {name}: {named}")

    async def asked_again(self, name: str, times: int = 3) -> None:
        """Returns when a source was asked so many times from now on: what it answers now was looked at."""
        answer = self.sources[name].answer
        wanted = answer.asked + times

        await eventually(lambda: answer.asked >= wanted, f"source {name} is asked again")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("muster")
    names = ("drains", "keeps", "mumbles", "stammers", "skewed", *NONSENSE, "late")
    sources = {name: HttpSource(*SHARED) for name in names}
    tables = {name: http_table(name, source) for name, source in sources.items()}
    tables["keeps"]["when_lost"] = "keep"
    for name in ("mumbles", "stammers", "skewed"):  # these answer all the time, if only a busy machine lets them
        tables[name] |= {"timeout_s": 60.0, "stale_after_s": 60.0}
    tables["late"]["required"] = False
    file = directory / "hosts.json"
    write(file, json.dumps(SHARED))
    often = {"poll_s": POLL_S, "settle_s": 0.0, "stale_after_s": STALE_AFTER_S}
    tables["filed"] = {"kind": "file", "rm": "filed", "path": str(file), **often}
    up = ExternalUp(directory, tables, sync_timeout_s=SYNC_S)
    try:
        for name in names[:-1]:
            sources[name].start()
        asyncio.run(up.start())
        yield World(up, sources, file)
    finally:
        up.process.stop()
        for source in sources.values():
            source.stop()


async def test_without_a_source_that_is_not_required_everything_else_goes_on(world: World) -> None:
    """(Its time-out began with the world.)"""
    async with world.rm("late") as rm:
        await world.state("late", "STALE")
        await world.health_names("late")
        assert await rm.fills(10) == {"own": 1, "shared": 8}
        world.sources["late"].start()
        await rm.node_has("shared", 4)
        await rm.runs_all(own=1, shared=8, brought=1)
        assert (await rm.node("shared"))["available"]["vcore"] == -5_000


# ---- away -----------------------------------------------------------------------------------------------------------


async def test_a_lost_source_drains_its_nodes_until_it_is_back(world: World) -> None:
    async with world.rm("drains") as rm:
        await rm.node_has("shared", 4)
        before = await rm.fills(3)
        world.sources["drains"].stop()
        said = await world.state("drains", "STALE")
        assert (said["lost"], said["drains"]) == (True, True)
        # A busy machine may not come to a second attempt within stale_after_s.
        assert any(why in said["reason"] for why in ("attempts failed", "not heard for")), said["reason"]
        await world.health_names("drains")
        for name in ("shared", "brought"):
            assert not (await rm.node(name))["schedulable"], name
            await rm.event(name, lambda message: "drains" in message)
        assert (await rm.node("own"))["schedulable"]

        assert await rm.fills(10) == before | Counter(own=1)
        world.sources["drains"].start()
        await world.state("drains", "LIVE")
        await rm.runs_all(own=1, shared=3, brought=2)
        await world.health_names("drains", named=False)


async def test_the_nodes_of_a_lost_source_that_is_kept_go_on_as_it_said_last(world: World) -> None:
    async with world.rm("keeps") as rm:
        await rm.node_has("shared", 4)
        world.sources["keeps"].stop()
        said = await world.state("keeps", "STALE")
        assert (said["lost"], said["drains"]) == (True, False)
        await world.health_names("keeps")
        assert await rm.fills(10) == {"own": 1, "shared": 3, "brought": 2}

        world.sources["keeps"].answer.says(*SHARED[1:])  # it forgot the host, not the VM on it
        world.sources["keeps"].start()
        await world.state("keeps", "LIVE")
        await rm.node_has("shared", 8)
        await rm.runs_all(own=1, shared=7, brought=2)


# ---- what it says ---------------------------------------------------------------------------------------------------


async def test_a_document_that_cannot_be_read_is_no_news_and_no_more_room(world: World) -> None:
    answer = world.sources["mumbles"].answer
    async with world.rm("mumbles") as rm:
        await rm.node_has("shared", 4)
        # 1. a host that is known, one that is not, and a VM; beside what can be read
        bad_host, bad_vm = host("shared", 8, threads=16), vm("vm-1", "shared", 0, quantities={"vcore": "few"})
        new = {"kind": "node", "id": "new", "capacity": {"vcore": -1}}
        answer.says(bad_host, host("brought", 3), bad_vm, new)
        await rm.node_has("brought", 3)
        shown = await rm.node("shared")
        assert (shown["capacity"]["vcore"], shown["available"]["vcore"], shown["schedulable"]) == (4_000, 3_000, False)
        assert await rm.node("new") == {}
        objects = await world.up.objects("mumbles", "mumbles")
        assert {name for name, each in objects.items() if each["stale"]} == {"shared", "vm-1"}
        assert await rm.fills(10) == {"own": 1, "brought": 3}
        log = await world.up.log()
        for problem in ("threads: unknown field", "quantities.vcore: 'few'", "capacity.vcore: -1"):
            assert problem in log

        # 2. it collects itself
        answer.says(*SHARED)
        await rm.node_has("brought", 2)
        await rm.runs_all(own=1, brought=3, shared=3)
        assert (await rm.node("brought"))["available"]["vcore"] == -1_000


async def test_an_answer_that_makes_no_sense_counts_as_none(world: World) -> None:
    async def gets(name: str, status: int, body: bytes) -> None:
        answer = world.sources[name].answer
        async with world.rm(name) as rm:
            await rm.node_has("shared", 4)
            answer.fails(status, body)
            reason = (await world.state(name, "STALE"))["reason"]
            assert "127.0.0.1" in reason, reason
            assert [(await rm.node(each))["capacity"]["vcore"] for each in ("shared", "brought")] == [4_000, 2_000]
            assert await rm.fills(10) == {"own": 1}
            answer.says(*SHARED)
            await rm.runs_all(own=1, shared=3, brought=2)

    async with asyncio.TaskGroup() as all_at_once:
        for name, answered in NONSENSE.items():
            all_at_once.create_task(gets(name, *answered))


async def test_two_contents_of_one_object_are_not_believed(world: World) -> None:
    answer = world.sources["stammers"].answer
    async with world.rm("stammers") as rm:
        await rm.node_has("shared", 4)
        # The same twice is no contradiction; ``new`` is one from the start.
        answer.says(*SHARED, host("shared", 6), SHARED[1], host("new", 1), host("new", 2), host("more", 1))
        await rm.node_has("more", 1)
        shown = await rm.node("shared")
        assert (shown["capacity"]["vcore"], shown["schedulable"]) == (4_000, False)
        assert await rm.node("new") == {}
        assert (await world.up.objects("stammers", "stammers"))["shared"]["stale"]
        assert await rm.fills(10) == {"own": 1, "brought": 2, "more": 1}
        answer.says(*SHARED, host("new", 1), host("more", 1))
        await rm.runs_all(own=1, brought=2, more=1, new=1, shared=3)


# ---- clocks ---------------------------------------------------------------------------------------------------------


async def test_versions_and_dates_of_wrong_clocks_move_nothing(world: World) -> None:
    source = world.sources["skewed"]
    async with world.rm("skewed") as rm:
        await rm.node_has("shared", 4)
        # 1. a version from the future counts; what comes after it with the right time is late
        source.answer.says(host("shared", 3, version=2**63 - 1), *SHARED[1:], Date=PAST, Last_Modified=FUTURE)
        await rm.node_has("shared", 3)
        source.answer.says(host("shared", 8, version=1_800_000_000), *SHARED[1:], Date=FUTURE, Last_Modified=PAST)
        await world.asked_again("skewed")
        assert (await rm.node("shared"))["capacity"]["vcore"] == 3_000
        # 2. of what has no version the last word counts, whatever the dates say
        source.answer.says(*SHARED[:1], host("brought", 1), SHARED[2], Date=PAST, Last_Modified=PAST, Expires=FUTURE)
        await rm.node_has("brought", 1)
        # 3. "ask me again in 173 years", "ask me again 50 years ago"
        for date in (FUTURE, PAST):
            source.answer.fails(503, Retry_After=date)
            await world.asked_again("skewed", times=1)
        source.answer.says(*SHARED[:1], host("brought", 2), SHARED[2], Age="-1", Cache_Control="max-age=31536000")
        await rm.node_has("brought", 2)
        await rm.asks(10)
        await rm.runs_all(own=1, shared=3, brought=2)


async def test_a_file_that_goes_lies_or_is_dated_wrong(world: World) -> None:
    async with world.rm("filed") as rm:
        await rm.node_has("shared", 4)
        world.file.unlink()
        reason = (await world.state("filed", "STALE"))["reason"]
        assert str(world.file) in reason
        assert await rm.fills(10) == {"own": 1}
        write(world.file, "")
        await asyncio.sleep(2 * STALE_AFTER_S)
        assert (await rm.node("shared"))["capacity"]["vcore"] == 4_000
        for year_s, cores in ((4_000_000_000, 3), (0, 2)):
            aside = world.file.with_suffix(".dated")
            aside.write_text(json.dumps([host("shared", cores), *SHARED[1:]]))
            os.utime(aside, (year_s, year_s))
            aside.rename(world.file)
            await rm.node_has("shared", cores)
            # Two tasks came to run there while it had three cores; none is added.
            await rm.runs_all(own=1, brought=2, shared=2)


# ---- at the start ---------------------------------------------------------------------------------------------------


async def test_without_a_required_source_the_process_ends_and_says_why(tmp_path: Path) -> None:
    there, away = HttpSource(*SHARED).start(), HttpSource()
    tables = {"there": http_table("first", there), "away": http_table("first", away)}
    up = ExternalUp(tmp_path, tables, sync_timeout_s=SYNC_S)
    try:
        up.process.start()
        assert await up.ended() == 1
        (said,) = [line for line in (await up.log()).splitlines() if line.startswith("muster: ")]
        assert said.startswith(f"muster: informers that had not synced after {SYNC_S} s: away: {away.url}: ")
        assert "attempts failed" in said
        assert "there" not in said
        assert "Traceback" not in await up.log()
    finally:
        up.process.kill()
        there.stop()


async def test_after_a_kill_nothing_is_decided_before_the_source_has_listed_again(tmp_path: Path) -> None:
    source = HttpSource(*SHARED).start()
    up = ExternalUp(tmp_path, {"vms": http_table("first", source)})
    try:
        await up.start()
        async with up.rm("first") as rm:
            await rm.joins(own=1, shared=8)
            await rm.node_has("shared", 4)
            before = await rm.fills(2)  # of the six that find room
            up.process.kill()
            source.stop()
            await up.begin()
            await rm.asks(10)
            await rm.heard_out()
            # What was recorded counts, and is not decided on.
            shown = await rm.node("shared")
            assert (shown["capacity"]["vcore"], shown["occupied"]["vcore"]) == (4_000, 1_000)
            assert rm.runs() == before
            source.answer.says(host("shared", 3), SHARED[2])
            source.start()
            # One host is smaller, the other is gone, with what ran there.
            kept = before - Counter(brought=before["brought"])
            await rm.runs_all(**(kept | Counter(own=1, shared=2)))
    finally:
        up.process.kill()
        source.stop()


@pytest.mark.kafka
@pytest.mark.redis
async def test_a_gateway_takes_asks_while_the_scheduler_waits_for_its_source(
    tmp_path: Path, kafka_bootstrap: str, redis_url: str
) -> None:
    source, settings = HttpSource(*SHARED), tmp_path / "settings.toml"
    settings.write_text(settings_text({"vms": http_table("first", source)}, sync_timeout_s=60))
    deployment = on_kafka(tmp_path, kafka_bootstrap, redis_url, {"MUSTER_SETTINGS": str(settings)})
    scheduler, gateway = deployment.processes["scheduler"], deployment.processes["gateway"]

    async def synced() -> bool:
        with suppress(httpx.TransportError, httpx.HTTPStatusError):
            return bool(await get(deployment.operations["scheduler"], "/health/ready"))
        return False

    try:
        scheduler.start()
        gateway.start()
        await gateway.serving(deployment.gateway)
        async with Rm(deployment.gateway, deployment.http, "first") as rm:
            await rm.joins(own=1, shared=8)
            await rm.asks(10)
            await rm.heard_out()
            assert rm.tasks == {}
            source.start()
            await rm.runs_now(own=1, shared=3, brought=2)

            scheduler.kill()
            source.stop()
            source.answer.says(host("shared", 3), *SHARED[1:])
            scheduler.start()
            await rm.ends("shared")
            # By what is recorded there is room for another one now.
            await rm.heard_out()
            source.start()
            await eventually(synced, "the scheduler is ready")
            await rm.heard_out()
            assert rm.runs() == {"own": 1, "shared": 2, "brought": 2}
    finally:
        for process in (gateway, scheduler):
            process.kill()
        source.stop()


# ---- what was asked for is not there --------------------------------------------------------------------------------


def packages(directory: Path, group: str, name: str) -> Path:
    """Two packages that are installed there, and have an informer or handler of the same name."""
    for each in ("mine", "theirs"):
        info = directory / f"{each}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {each}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {each}:make\n")
        (directory / f"{each}.py").write_text("make = print\n")
    return directory


FILE = {"kind": "file", "rm": "first", "path": "hosts.json"}
REFUSED: dict[str, tuple[dict[str, object], list[str], tuple[str, ...]]] = {
    "unknown handler": (FILE, ["--event-handler", "nobody"], ("'nobody'", "default", "two-level")),
    "no such file": (FILE, ["--config-path", "nowhere.toml"], ("nowhere.toml",)),
    "no settings of it": (
        FILE,
        ["--event-handler", "two-level", "--config-path", "pyproject.toml"],
        ("vms: config_path: ", "idle", "grace"),
    ),
    "handler twice": (FILE, ["--event-handler", "twice"], ("'twice'", "mine", "theirs")),
    "kind twice": ({**FILE, "kind": "pigeons"}, [], ("'pigeons'", "mine", "theirs")),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
async def test_it_does_not_start_without_what_was_asked_for(tmp_path: Path, what: str) -> None:
    table, flags, expected = REFUSED[what]
    group, name = ("muster.informers", "pigeons") if "kind" in what else ("muster.event_handlers", "twice")
    installed = packages(tmp_path / "installed", group, name) if "twice" in what else tmp_path
    up = ExternalUp(tmp_path, {"vms": table}, *flags, environment={"PYTHONPATH": str(installed)})
    up.process.start()
    try:
        code = await up.ended()
    finally:
        up.process.kill()
    (said,) = (await up.log()).splitlines()
    assert code == 2
    assert said.startswith("muster: ")
    for text in expected:
        assert text in said
