"""A directory of an embedded Muster that has lived: registrations, gangs, releases, retention, compaction, three
starts, and a kill with a write-ahead log. Copies of the log's file from earlier moments are beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import grpc
from frozen.furnish import Stream, allocation, application, current, node, previous
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1 import si_pb2_grpc
from up import Up
from waiting import eventually

CHURN = "churn"
CONFIG = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
SETTINGS = """
[log]
sqlite_maintenance_interval_s = 1
sqlite_compaction_min_records = 50
sqlite_tombstone_grace_s = 1
requests_retention_s = 2
"""
ROUNDS, ASKS = 8, 20


class Life(NamedTuple):
    """:param data: the data directory after the kill.
    :param earlier: the log's file at two earlier moments.
    """

    data: Path
    earlier: tuple[Path, ...]


def lived(directory: Path) -> Life:
    """Lets a Muster live in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "settings.toml").write_text(SETTINGS)
    up = Up(directory, "--settings", str(directory / "settings.toml"))
    earlier: list[Path] = []
    try:
        for number, part in enumerate((_first, _second, _third)):
            asyncio.run(up.start())
            with grpc.insecure_channel(up.grpc) as channel:
                part(si_pb2_grpc.SchedulerStub(channel))
            if number < 2:
                if number:
                    asyncio.run(eventually(lambda: _was_maintained(up.data), "retention and compaction have worked"))
                assert up.process.stop() == 0
                earlier.append(Path(shutil.copy(up.data / "log.db", directory / f"earlier-{number}.db")))
    finally:
        up.process.kill()
    assert (up.data / "log.db-wal").stat().st_size
    return Life(up.data, tuple(earlier))


def _first(scheduler: si_pb2_grpc.SchedulerStub) -> None:
    current(scheduler)
    previous(scheduler)
    scheduler.RegisterResourceManager(
        si.RegisterResourceManagerRequest(rmID=CHURN, version="1", policyGroup="queues", config=CONFIG), timeout=60
    )
    nodes = Stream(scheduler.UpdateNode, CHURN)
    nodes.until(si.NodeRequest(rmID=CHURN, nodes=[node("n1"), node("n2"), node("n3")]), lambda answer: answer.accepted)
    apps = Stream(scheduler.UpdateApplication, CHURN)
    apps.until(si.ApplicationRequest(rmID=CHURN, new=[application("app", "root.a")]), lambda answer: answer.accepted)
    _churn(scheduler, "first")


def _second(scheduler: si_pb2_grpc.SchedulerStub) -> None:
    _churn(scheduler, "second")


def _third(scheduler: si_pb2_grpc.SchedulerStub) -> None:
    _churn(scheduler, "third")


def _churn(scheduler: si_pb2_grpc.SchedulerStub, name: str) -> None:
    """Asks and releases, of which a few stay."""
    stream = Stream(scheduler.UpdateAllocation, CHURN)
    for number in range(ROUNDS):
        keys = {f"{name}-{number}-{index}" for index in range(ASKS)}
        small = si.Resource(resources={"vcore": si.Quantity(value=10), "memory": si.Quantity(value=10**6)})
        asks = [allocation("app", key, resourcePerAlloc=small) for key in sorted(keys)]
        stream.until(si.AllocationRequest(rmID=CHURN, allocations=asks), _all(keys, lambda answer: answer.new))
        ended = set(sorted(keys)[2:])
        releases = [
            si.AllocationRelease(
                partitionName="default", applicationID="app", allocationKey=key, terminationType=si.STOPPED_BY_RM
            )
            for key in sorted(ended)
        ]
        request = si.AllocationRequest(rmID=CHURN, releases=si.AllocationReleasesRequest(allocationsToRelease=releases))
        stream.until(request, _all(ended, lambda answer: answer.released))


def _all(keys: set[str], of: Callable[[si.AllocationResponse], object]) -> Callable[[si.AllocationResponse], bool]:
    left = set(keys)

    def came(answer: si.AllocationResponse) -> bool:
        left.difference_update(each.allocationKey for each in of(answer))  # type: ignore[attr-defined]
        return not left

    return came


def _was_maintained(data: Path) -> bool:
    with contextlib.closing(sqlite3.connect(f"file:{data / 'log.db'}?mode=ro", uri=True)) as connection:
        retained, cleaned = connection.execute("SELECT max(first_offset), max(cleaned_to) FROM partitions").fetchone()
    return bool(retained and cleaned)
