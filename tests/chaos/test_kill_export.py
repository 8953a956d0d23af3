"""kill -9 of the publisher in the middle of an export from Kafka to every store: each event is there once.

MUSTER_EXPORT_EVENTS and MUSTER_EXPORT_KILLS make it larger: ``make test-long`` does it with 60,000, ``make
bench-export`` with a million.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chaos.exporting import STORES, Exported
from waiting import eventually

EVENTS = int(os.environ.get("MUSTER_EXPORT_EVENTS", "16000"))
KILLS = int(os.environ.get("MUSTER_EXPORT_KILLS", "3"))
PATIENCE_S = 240  # some seconds, where the machine has nothing else to do

# Small writes, so that a kill meets the middle of many.
OPTIONS = {
    "postgres": {"flush_records": EVENTS // 30, "transaction_records": EVENTS // 86, "flush_s": 0.2},
    "parquet": {"roll_records": EVENTS // 40, "roll_s": 0.2},
    "jsonl": {"roll_records": EVENTS // 40, "roll_s": 0.2},
}


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_event_is_in_every_store_once(kafka_bootstrap: str, postgres_dsn: str, tmp_path: Path) -> None:
    exported = Exported(kafka_bootstrap, postgres_dsn, tmp_path, EVENTS, partitions=2, options=OPTIONS)
    publisher = exported.publisher(STORES)
    try:
        await exported.feed()
        for _ in range(KILLS):
            publisher.process.start()
            await publisher.until(int(0.8 * EVENTS / (KILLS + 1)), PATIENCE_S)
            publisher.process.kill()
        # The last one may finish.
        publisher.process.start()
        await eventually(lambda: all_there(exported), "each store has every event", PATIENCE_S, every_s=0.1)
        assert publisher.process.stop() == 0
        assert {store: await exported.rows(store) for store in STORES} == dict.fromkeys(STORES, exported.expected)
    finally:
        publisher.process.kill()
        await exported.clear()


async def all_there(exported: Exported) -> bool:
    """Whether each store has every event. (It may have had them before this life, which then exports nothing there.)"""
    return all([(await exported.rows(store))[1] == EVENTS for store in STORES])
