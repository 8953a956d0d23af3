"""Several event publishers on one Kafka: each event is exported once, whoever comes, goes or dies meanwhile."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import asyncpg
import pytest
from chaos.exporting import Exported, Publisher
from chaos.harness import opened_log
from group_rig import one_rm_per_partition
from history_files import rows_of
from unit.publisher.feeding import Feeder
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(900)]

PARTITIONS = 4
PACE_S = 0.1  # between two writes of events
WITHIN_S = 180.0  # three processes start at once
# Files are written while the test goes on, and several times for each partition.
STORES = {"parquet": {"roll_s": 1.0}, "jsonl": {"roll_s": 1.0}, "postgres": {"flush_s": 0.2}}


class Feed:
    """Events that are written until the end.

    :ivar written: RM → number of its events that are on the log.
    """

    def __init__(self, feeder: Feeder, rms: Iterable[str]) -> None:
        self._feeder, self.written = feeder, dict.fromkeys(rms, 0)
        self._stopping = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._stopping:
            for rm_id, count in self.written.items():
                await self._feeder.events(rm_id, range(count, count + 5), instance=rm_id)
                self.written[rm_id] = count + 5
            await asyncio.sleep(PACE_S)

    async def stop(self) -> None:
        """Returns when ``written`` is right: a write that is under way ends first. Raises the writer's error."""
        self._stopping = True
        await self._task

    def abandon(self) -> None:
        """Ends it after a failure."""
        self._task.cancel()


async def exports(publisher: Publisher) -> dict[str, object]:
    """What a publisher exports, and how many share; {} while it does not answer."""
    return (await publisher.health()).get("event-publisher", {})


async def settled(publishers: list[Publisher]) -> dict[int, set[int]]:
    """Waits until these share all partitions evenly."""

    async def look() -> dict[int, set[int]] | None:
        found = [await exports(each) for each in publishers]
        owned = [each.get("exports", ()) for each in found]
        if sorted(partition for some in owned for partition in some) != list(range(PARTITIONS)):
            return None
        sizes = [len(some) for some in owned]
        if max(sizes) - min(sizes) > 1 or any(each.get("publishers") != len(publishers) for each in found):
            return None
        return {number: set(some) for number, some in enumerate(owned)}

    shares: dict[int, set[int]] = await eventually(look, f"{len(publishers)} publishers settle", WITHIN_S, 0.1)
    return shares


async def test_publishers_come_go_die_and_pause(
    tmp_path: Path, kafka_bootstrap: str, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last one exports everything before it ends, however busy the machine is.
    monkeypatch.setenv("MUSTER_PUBLISHER__STOP_TIMEOUT_S", "120")
    stores = Exported(kafka_bootstrap, postgres_dsn, tmp_path, 0, partitions=PARTITIONS, options=STORES)
    async with opened_log(stores.log_settings) as (log, topics):
        publishers = [stores.publisher(tuple(STORES), f"publisher-{number}") for number in range(3)]
        feed = Feed(Feeder(log, topics), one_rm_per_partition(topics))
        connection = await asyncpg.connect(postgres_dsn)

        async def stored() -> None:
            """What is on the log now is in PostgreSQL."""
            wanted = dict(feed.written)

            async def look() -> bool:
                if await connection.fetchval("select to_regclass($1)", f"{stores.schema}.events") is None:
                    return False
                rows = await connection.fetch(f"select rm, count(*) from {stores.schema}.events group by rm")
                counts = dict(map(tuple, rows))
                return all(counts.get(rm_id, 0) >= count for rm_id, count in wanted.items())

            await eventually(look, "the events are exported", WITHIN_S, 0.1)

        try:
            # 1 three of them come
            for number in range(3):
                publishers[number].process.start()
            shares = await settled(publishers)
            await stored()
            # 2 kill -9: the others take its partitions
            dead = next(number for number, some in shares.items() if some)
            publishers[dead].process.kill()
            living = [each for number, each in enumerate(publishers) if number != dead]
            await settled(living)
            await stored()
            # 3 it comes back; another one is paused, and goes on
            publishers[dead].process.start()
            await settled(publishers)
            paused = living[0]
            paused.send(signal.SIGSTOP)
            await settled([each for each in publishers if each is not paused])
            paused.send(signal.SIGCONT)
            await settled(publishers)
            await stored()
            # 4 they stop, one after the other; the last one has all
            await feed.stop()
            for publisher in publishers:
                assert await asyncio.to_thread(publisher.process.stop, WITHIN_S) == 0
            expected = {(rm_id, number) for rm_id, count in feed.written.items() for number in range(count)}
            assert len(expected) > 100
            rows = await connection.fetch(f"select rm, id from {stores.schema}.events")
            assert_each_once([tuple(row) for row in rows], expected, "postgres")
            for store, source in (("parquet", "read_parquet"), ("jsonl", "read_json")):
                suffix = "parquet" if store == "parquet" else "jsonl.zst"
                query = f"select rm, id from {source}('{tmp_path}/{store}/**/*.{suffix}')"
                assert_each_once(await asyncio.to_thread(rows_of, query), expected, store)
        except BaseException:
            for publisher in publishers:
                print(publisher.process.log_tail())
            raise
        finally:
            feed.abandon()
            for publisher in publishers:
                if publisher.process.running:
                    publisher.send(signal.SIGCONT)
                    await asyncio.to_thread(publisher.process.stop)
            await connection.execute(f"drop schema if exists {stores.schema} cascade")
            await connection.close()


def assert_each_once(found: list[tuple[str, int]], expected: set[tuple[str, int]], store: str) -> None:
    counts = Counter(found)
    assert counts.keys() == expected, f"{store}: {len(expected - counts.keys())} are missing"
    assert set(counts.values()) == {1}, f"{store} has an event twice"
