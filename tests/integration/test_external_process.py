"""Informers in a process of their own: their statements reach the log, also if one of the two processes is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hanging import can_hang, hang
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.errors import LogUnavailable
from muster_bus.log import LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_core.external.errors import NotSynced
from muster_core.external.model import ExternalKind, ExternalOffer, OfferState
from muster_core.external.reports import ReportedObject, SourceEntry
from muster_informers.process import ExternalProcess
from muster_informers.service import ExternalService
from muster_informers.settings import ExternalSettings
from muster_informers.sync_gate import restarted_incarnation
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_state import state_codec
from prometheus_client import REGISTRY
from waiting import eventually

WITHIN_S = 240.0  # for a whole test, with several starts of a process

pytestmark = pytest.mark.timeout(2 * WITHIN_S)

TOPICS = Topics(partitions=1)
SECRET = "s3cret-of-nobody"
OFFER = ExternalOffer("o1", "h1", {})
HOSTS = [{"kind": "node", "id": "h1", "capacity": {"vcore": 4000}}]


class Log(MemoryLog):
    """A log. ``away``: it takes no record."""

    away = False

    async def writer(self, name: str) -> LogWriter:
        writer = await super().writer(name)
        append = writer.append

        async def refused() -> int:
            raise LogUnavailable("the log is away")

        def taken(record: OutRecord) -> Awaitable[int]:
            return refused() if self.away else append(record)

        writer.append = taken  # type: ignore[method-assign]
        return writer


class Rig:
    """A log, and informers in a process of their own."""

    def __init__(self, directory: Path, tables: dict[str, dict[str, object]], **settings: object) -> None:
        (directory / "hosts.json").write_text(json.dumps(HOSTS))
        self.settings = ExternalSettings.model_validate(
            {"base": directory, "sync_timeout_s": WITHIN_S, "informers": tables, **settings}
        )
        self.log = Log(TOPICS.specs(), SystemClock())

    @asynccontextmanager
    async def running(self, *, available_s: float = 15.0) -> AsyncIterator[ExternalProcess]:
        await self.log.start()
        clock = SystemClock()
        judged = ExternalService(self.settings, self.log, TOPICS, clock, (0,), "life")
        process = ExternalProcess(
            judged, self.settings, self.log, TOPICS, clock, (0,), "life", wait_min_s=0.05, available_s=available_s
        )
        await process.start()
        try:
            async with asyncio.timeout(WITHIN_S):
                yield process
        finally:
            await process.stop()
            await self.log.close()

    async def said(self) -> list[tuple[str, str, str]]:
        """Return the statements on the log: (life, source, state or id)."""
        reader = await self.log.reader(TOPICS.requests, 0, 0)
        found = []
        while records := await reader.read(1000, 0):
            for record in records:
                said = pb.RequestEnvelope.FromString(record.value or b"").external
                found += [(said.life, said.source, each.id) for each in said.changes]
                found += [(said.life, said.source, said.note.state)] if said.HasField("note") else []
        await reader.close()
        return found

    async def hears(self, *wanted: tuple[str, str, str]) -> list[tuple[str, str, str]]:
        while (found := await self.said())[-len(wanted) :] != list(wanted):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return found


def file_table(**more: object) -> dict[str, object]:
    return {"kind": "file", "rm": "rm", "path": "hosts.json", "poll_s": 0.05, "settle_s": 0.0, **more}


def listed(life: str, source: str = "vms") -> list[tuple[str, str, str]]:
    return [(life, source, "LISTING"), (life, source, "h1"), (life, source, "LIVE")]


def _read(pid: int, place: str) -> bytes:
    return Path(f"/proc/{pid}/{place}").read_bytes()


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sample(name: str, **labels: str) -> float | None:
    """Return a sample's value. There must be at most one such sample."""
    found = [
        each.value
        for family in REGISTRY.collect()
        for each in family.samples
        if each.name == name and each.labels == labels
    ]
    assert len(found) <= 1
    return found[0] if found else None


async def test_statements_are_on_the_log_and_secrets_nowhere_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_SCHEDULER__EXTERNAL__INFORMERS", json.dumps({"x": {"url": SECRET}}))
    away = {"kind": "http", "rm": "other", "required": False, "url": f"http://127.0.0.1:9/?token={SECRET}"}
    rig = Rig(tmp_path, {"vms": file_table(), "away": away}, sync_timeout_s=4.0)
    of_this_process = sample("muster_external_objects", source="vms", kind="node")
    async with rig.running() as process:
        await eventually(lambda: process.synced, within_s=WITHIN_S)
        found = await rig.said()
        assert [each for each in found if each[1] == "vms"] == listed("life")
        assert [each for each in found if each[1] == "away"][-1] == ("life", "away", "STALE")
        (problem,) = process.problems()
        assert problem.startswith("informer away (http): ")
        for place in ("cmdline", "environ"):
            read = _read(process.pid, place)
            assert SECRET.encode() not in read, place
            assert (b"muster_informers.child" in read) == (place == "cmdline")
        assert SECRET not in problem
        # This process serves the informers' metrics, each once.
        await eventually(lambda: sample("muster_external_objects", source="vms", kind="node") == 1)
        assert sample("muster_external_state", source="vms") == 1
        pid = process.pid
    assert not is_there(pid)
    assert sample("muster_external_objects", source="vms", kind="node") == of_this_process


def killed(process: ExternalProcess) -> str:
    """Return the only problem, if it is that the process was killed."""
    problems = process.problems()
    return problems[0] if len(problems) == 1 and "killed by SIGKILL" in problems[0] else ""


async def test_killed_its_sources_are_lost_and_it_begins_again_in_a_new_life(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"vms": file_table(when_lost="keep")})
    async with rig.running() as process:
        gate = process.gate
        await eventually(lambda: process.synced, within_s=WITHIN_S)
        for number in (1, 2):
            pid, life = process.pid, restarted_incarnation("life", number)
            os.kill(pid, signal.SIGKILL)
            # (The next one soon has no problem any more.)
            problem = await eventually(
                lambda pid=pid: process.pid not in (0, pid) and killed(process), within_s=WITHIN_S
            )  # type: ignore[misc]
            assert "vms (file): the informers' process was killed by SIGKILL; it is started again" in problem
            assert problem.endswith("its last report still counts")
            assert process.synced
            again = restarted_incarnation("life", number + 1)
            assert gate.is_of_this_start(again)
            await rig.hears((life, "vms", "STALE"), *listed(again))
        await eventually(lambda: process.problems() == [])
    assert not gate.is_of_this_start("another-life#2")


async def test_killed_while_its_source_is_away_it_ends_nothing_else(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"vms": file_table()}, sync_timeout_s=5.0)
    async with rig.running() as process:
        await eventually(lambda: process.synced, within_s=WITHIN_S)
        (tmp_path / "hosts.json").unlink()
        os.kill(process.pid, signal.SIGKILL)
        ended = asyncio.ensure_future(process.wait())
        await rig.hears(("life", "vms", "STALE"), ("life#2", "vms", "LISTING"), ("life#2", "vms", "STALE"))
        await eventually(lambda: "hosts.json" in str(process.problems()))
        assert process.synced
        assert not ended.done()
        (tmp_path / "hosts.json").write_text(json.dumps(HOSTS))
        await rig.hears(("life#2", "vms", "h1"), ("life#2", "vms", "LIVE"))
    await ended


async def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    can_hang(monkeypatch)
    rig = Rig(tmp_path, {"vms": file_table()})
    async with rig.running(available_s=6.0) as process:
        await eventually(lambda: process.synced, within_s=WITHIN_S)
        await eventually(lambda: sample("muster_external_state", source="vms") == 1)
        hang(process.pid)
        await rig.hears(("life", "vms", "STALE"), *listed("life#2"))


async def test_killed_before_it_has_synced_it_is_waited_for_all_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"vms": file_table()})
    (tmp_path / "hosts.json").unlink()
    async with rig.running() as process:
        await eventually(lambda: "hosts.json" in str(process.problems()), within_s=WITHIN_S)
        os.kill(process.pid, signal.SIGKILL)
        # (The next one soon says something else.)
        problem = await eventually(lambda: killed(process), within_s=WITHIN_S)
        assert problem.startswith("informer vms (file) has not synced: ")
        assert not process.synced
        (tmp_path / "hosts.json").write_text(json.dumps(HOSTS))
        await eventually(lambda: process.synced, within_s=WITHIN_S)
        # A required source that never came is not given up.
        assert await rig.said() == [("life", "vms", "LISTING"), *listed("life#2")]


async def test_a_required_one_that_does_not_sync_in_time_is_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"vms": file_table(path="nowhere.json"), "there": file_table()}, sync_timeout_s=3)
    async with rig.running() as process:
        with pytest.raises(NotSynced, match=r"^informers that had not synced after 3 s: vms: .*nowhere\.json"):
            await process.wait()


async def test_stopped_while_it_begins_it_ends(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"vms": file_table()})
    async with rig.running() as process:
        await eventually(lambda: process.pid != 0)
        pid = process.pid
    assert not is_there(pid)


async def test_while_the_log_is_away_health_says_so_and_the_newest_is_written_when_it_is_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"vms": file_table()})
    async with rig.running() as process:
        await eventually(lambda: process.synced, within_s=WITHIN_S)
        rig.log.away = True
        (tmp_path / "hosts.json").write_text(json.dumps([{**HOSTS[0], "id": "h2"}]))
        await eventually(lambda: process.problems() != [])
        assert process.problems() == ["informer vms (file): the log does not accept its statements: the log is away"]
        (tmp_path / "hosts.json").write_text(json.dumps([{**HOSTS[0], "id": "h3"}]))
        pid = process.pid
        rig.log.away = False
        await eventually(lambda: process.problems() == [])
        while ("life", "vms", "h3") not in await rig.said():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert process.pid == pid


LENDER = """
import asyncio, os, pathlib
from muster_informers.contract import Listing

class Lender:
    def __init__(self, file):
        self.file = pathlib.Path(file)
    async def list(self):
        return Listing([], "1")
    async def watch(self, cursor):
        while True:
            yield ()
            await asyncio.sleep(1)
    async def give_back(self, offer_ids):
        with self.file.open("a") as file:
            file.writelines(f"{os.getpid()} {each}\\n" for each in offer_ids)
    async def close(self): ...

def make(options, context):
    return Lender(options["file"])
"""


async def test_offers_go_back_to_a_lender_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "lender-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lender\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[muster.informers]\nlender = lender:make\n")
    (tmp_path / "lender.py").write_text(LENDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    back = tmp_path / "back"
    back.touch()
    rig = Rig(tmp_path, {"mesos": {"kind": "lender", "rm": "rm", "file": str(back)}})

    async def record(writer: LogWriter, offer_id: str, state: OfferState, source: str = "mesos") -> None:
        entry = ReportedObject(SourceEntry("default", source), ExternalKind.OFFER, offer_id, OFFER, "1", 5)
        entry.offer_state = state
        key, value = state_codec.key_of("rm", "default", entry), state_codec.encode("default", entry)
        await writer.append(OutRecord(TOPICS.state, 0, key, value))

    async with rig.running() as process:
        writer = await rig.log.writer("states")
        await record(writer, "o1", OfferState.RETURNED)
        await record(writer, "o2", OfferState.RETURNED, source="other")
        await record(writer, "o3", OfferState.OFFERED)
        await eventually(lambda: back.read_text() == f"{process.pid} o1\n")
        await record(writer, "o3", OfferState.RETURNED)
        await eventually(lambda: back.read_text() == f"{process.pid} o1\n{process.pid} o3\n")


PARENT = """
import asyncio, sys
from pathlib import Path
from integration.test_external_process import Rig, file_table
from waiting import eventually
async def main():
    rig = Rig(Path(sys.argv[1]), {"vms": file_table()})
    async with rig.running() as process:
        await eventually(lambda: process.synced)
        print("the child is", process.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_it_ends_with_the_scheduler_that_is_killed(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            while not (line := await parent.stdout.readline()).startswith(b"the child is"):
                assert line
            pid = int(line.split()[-1])
            assert is_there(pid)
            parent.kill()
            await eventually(lambda: not is_there(pid))
    finally:
        if parent.returncode is None:
            parent.kill()
        await parent.wait()
