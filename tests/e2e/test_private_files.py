"""Files that Muster writes into a world-readable directory are readable by its own user only."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from e2e.gang_rig import Rm, muster_here
from muster_cli.main import run
from structlog.testing import capture_logs
from waiting import eventually

QUEUES = "partitions: [{name: default, queues: [{name: root, submitacl: '*'}]}]"


def _modes(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode)
        for path in directory.rglob("*")
        if path.is_file()
    }


async def test_log_sessions_history_and_exports_are_private_in_whatever_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    umask = os.umask(0)
    try:
        async with muster_here(data, ["publisher.parquet_roll_s=0.2"]) as muster:
            rm = Rm(muster.gateway, muster.http, "rm1", QUEUES)
            async with rm:
                await rm.nodes(n1=4)
                await eventually(lambda: any(name.endswith(".parquet") for name in _modes(data)), "there is a history")
                modes = _modes(data)
        assert {"log.db", "log.db-wal", "log.db.lock", "sessions.db"} <= modes.keys()
        assert {name: oct(mode) for name, mode in modes.items() if mode != 0o600} == {}

        exported = 0
        for name in _modes(data):  # as an older version left them
            (data / name).chmod(0o644)
            exported += name.endswith(".parquet")  # (more than one, if the machine was busy)
        assert exported
        with capture_logs() as logged:
            async with muster_here(data):
                # (The exports begin a moment after everything else.)
                await eventually(lambda: set(_modes(data).values()) == {0o600}, "all files are private")
                modes = _modes(data)
        assert {name: oct(mode) for name, mode in modes.items() if mode != 0o600} == {}
        named = [each for each in logged if each["event"] == "mode of data files tightened"]
        # (A look at the log before it is opened makes a write-ahead log of its mode. A folder of Parquet files has a
        # lock, and one for each partition.)
        assert {Path(each["path"]).name for each in named} >= {
            "log.db", "log.db-wal", "log.db.lock", "log.db.mark", "sessions.db", ".lock",
            *(f".lock-p{part}" for part in range(4)),
        }  # fmt: skip
        assert sum(Path(each["path"]).suffix == ".parquet" for each in named) == exported
        assert len(named) == 10 + exported

        copy = f"COPY (SELECT 1) TO '{data / 'a.csv'}'"
        assert await asyncio.to_thread(run, ["history", copy, "--data-dir", str(data), "--allow-files"]) == 0
        assert _modes(data)["a.csv"] == 0o600
    finally:
        os.umask(umask)
