"""Two derive processes share the partitions, as containers do: a supervisor starts again what ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from integration.deriving_rig import assert_fan_out, assert_usage, until_fanned_out, until_ns
from integration.test_derive_faust import PARTITIONS, RMS, STEPS, Deriving, deriving
from unit.publisher.feeding import Feeder
from unit.publisher.using import Life
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(600)]


async def test_two_members_share_the_partitions(kafka_bootstrap: str, tmp_path: Path) -> None:
    """As containers do: each ends when the group changes, and is started again under its name."""
    lives = [Life(number, rm_id).live(STEPS) for number, rm_id in enumerate(RMS)]
    async with deriving(kafka_bootstrap, tmp_path) as (log, topics, usage, first):
        feeder = Feeder(log, topics)
        (tmp_path / "second").mkdir()
        second = Deriving(first.settings, tmp_path / "second", member="second")

        async def supervise() -> None:
            while True:
                for each in (first, second):
                    if not each.process.running:
                        each.process.start()
                await asyncio.sleep(0.1)

        async def feed(start: int, end: int) -> None:
            for life in lives:
                part = life.records[len(life.records) * start // 3 : len(life.records) * end // 3]
                await feeder.write(life.rm_id, [(record.value or b"", record.headers) for record in part])

        supervising = asyncio.create_task(supervise())
        try:
            await feed(0, 1)
            await eventually(lambda: assigned(first, second), "both have partitions", within_s=150, every_s=0.1)
            await feed(1, 3)
            # (On a busy machine a member may lose its session once more: each loss ends and starts both.)
            await eventually(
                lambda: [until_ns(usage, life) for life in lives] == [life.at_ns for life in lives],
                "all usage is there",
                within_s=150,
            )
            await until_fanned_out(log, topics, lives, within_s=150)
            for life in lives:
                assert_usage(usage, life)
                await assert_fan_out(log, topics, life)
        except BaseException:
            print(first.process.log_tail(), second.process.log_tail())
            raise
        finally:
            supervising.cancel()
            second.process.kill()


async def assigned(*derives: Deriving) -> bool:
    """Whether each of these has some partitions, and together they have all."""
    counts = [await each.partitions() for each in derives]
    return all(counts) and sum(counts) == PARTITIONS
