"""Backups under load and `kill -9`: each is one moment of the log, and Muster starts on it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from chaos.harness import (
    Deployment,
    assert_counted_through,
    embedded,
    event_ids,
    folded_state,
    opened_log,
    response_sequences,
)
from chaos.test_kill import OPENB, RM_ID, options
from muster_replay.local_process import muster_command
from muster_replay.replay import replay
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(muster_command(*map(str, arguments)), capture_output=True, text=True, timeout=120)


async def assert_one_moment(deployment: Deployment) -> int:
    """What stands on the log fits together, and the sessions are not ahead. Returns the number of placed tasks."""
    with sqlite3.connect(deployment.log_settings.sqlite_path.with_name("sessions.db")) as sessions:
        cursors = [offset for (offset,) in sessions.execute("SELECT offset FROM cursor")]
    sessions.close()
    async with opened_log(deployment.log_settings) as (log, topics):
        state = await folded_state(log, topics, RM_ID)
        placements = state.placements()
        assert max(placements.values(), default=1) == 1
        assert not placements.keys() & state.waiting()
        assert state.overcommitted() == []
        assert state.rm is not None
        ids = await event_ids(log, topics, RM_ID)
        assert_counted_through(ids, 0, "event ids")
        assert state.rm.next_event_id == len(ids)
        assert_counted_through(await response_sequences(log, topics, RM_ID), 1, "response numbers")
        reader = await log.reader(topics.responses, topics.partition_of(RM_ID))
        assert max(cursors, default=0) <= await reader.end_offset()
    return len(placements)


async def test_backups_under_load_and_kills(tmp_path: Path) -> None:
    deployment = embedded(tmp_path)
    data = tmp_path / "data"
    made: list[asyncio.Task[subprocess.CompletedProcess[str]]] = []

    async def on_sent(sent: int) -> None:
        if sent >= 4_000:
            await made[0]  # so that the first one cannot have all tasks
        if sent < 500 * (len(made) + 1) or len(made) == 3:
            return
        target = tmp_path / f"backup-{len(made)}"
        made.append(asyncio.create_task(asyncio.to_thread(run, "backup", target, "--data-dir", data)))
        while not (begun := target.with_name(f"{target.name}.partial")).exists() and not made[-1].done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert begun.exists() or target.exists()

    async with deployment.running():
        await replay(OPENB, options(deployment), on_sent=on_sent)
        assert len(made) == 3
        for done in await asyncio.gather(*made):
            assert done.returncode == 0, done
        # one that is killed leaves no backup; one after it is whole
        killed = subprocess.Popen(  # noqa: ASYNC220 - it is killed at once
            muster_command("backup", str(tmp_path / "killed"), "--data-dir", str(data)), stdout=subprocess.DEVNULL
        )
        while not (tmp_path / "killed.partial").exists() and killed.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (await asyncio.to_thread(run, "verify", "--data-dir", data)).returncode == 0
        await deployment.kill("up")
        last = await asyncio.to_thread(run, "backup", tmp_path / "killed-later", "--data-dir", data)
        assert last.returncode == 0, last
    assert (await asyncio.to_thread(run, "verify", "--data-dir", data)).returncode == 0

    placed = []
    for name in ("backup-0", "backup-2", "killed-later"):
        assert run("verify", tmp_path / name).returncode == 0
        (tmp_path / "restored" / name).mkdir(parents=True)
        there = embedded(tmp_path / "restored" / name)
        outcome = run("restore", tmp_path / name, "--data-dir", tmp_path / "restored" / name / "data")
        assert outcome.returncode == 0, outcome
        placed.append(await assert_one_moment(there))
    assert placed == sorted(placed)
    assert placed[-1] > placed[0]

    async with there.running():
        url = f"{there.http}/ws/v1/events/batch?rm={RM_ID}"

        def is_told() -> bool:
            try:
                lowest = _get(url)["LowestID"]
                # (The oldest ones leave while the publisher still reads the log: then there are none from that one on.)
                events = _get(f"{url}&start={lowest}")["EventRecords"] or []
            except urllib.error.HTTPError as error:
                if error.code != 503:  # the publisher still reads the log
                    raise
                return False
            return any("restored from the backup" in event.get("message", "") for event in events)

        await eventually(lambda: asyncio.to_thread(is_told), "an event tells of the backup", every_s=0.1)


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a little in it, and a backup of it."""
    base = tmp_path_factory.mktemp("small")
    topics = run("topics", "create", "--set", f"log.sqlite_path={base / 'data' / 'log.db'}")
    assert topics.returncode == 0, topics
    assert run("backup", base / "backup", "--data-dir", base / "data").returncode == 0
    return base


def test_a_restore_replaces_nothing_without_being_told_and_keeps_what_was_there(small: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert run("restore", small / "backup", "--data-dir", data).returncode == 0
    assert run("verify", "--data-dir", data).returncode == 0
    refused = run("restore", small / "backup", "--data-dir", data)
    assert refused.returncode == 2
    assert "--replace" in refused.stderr
    before = (data / "log.db").read_bytes()
    assert run("restore", small / "backup", "--data-dir", data, "--replace").returncode == 0
    (aside,) = data.glob("replaced-*")
    assert (aside / "log.db").read_bytes() == before
    assert (aside / "log.db.mark").exists()


def test_a_damaged_backup_is_found_and_not_restored(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small / "backup", tmp_path / "backup")
    content = bytearray((tmp_path / "backup" / "log.db").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "backup" / "log.db").write_bytes(content)
    found = run("verify", tmp_path / "backup")
    assert found.returncode == 1
    assert "checksum" in found.stderr
    refused = run("restore", tmp_path / "backup", "--data-dir", tmp_path / "data")
    assert refused.returncode == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("backup", "b", "--set", "log.backend=kafka"), "MirrorMaker"),
        (("backup", "b"), "--data-dir"),
        (("backup", "b", "--data-dir", "nowhere"), "has no log.db"),
        (("restore", "nowhere", "--data-dir", "d"), "is no backup"),
    ],
)
def test_wrong_calls_say_what_to_do(arguments: tuple[str, ...], told: str) -> None:
    outcome = run(*arguments)
    assert outcome.returncode == 2
    assert re.search(told, outcome.stderr), outcome.stderr
