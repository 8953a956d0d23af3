"""Many readers of old events at once, on a real Kafka: other readers continue, and all get right answers."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import httpx
import pytest
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_event_publisher import metrics
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from unit.publisher.feeding import Feeder
from waiting import eventually

pytestmark = pytest.mark.kafka

BATCH, STREAM = "/ws/v1/events/batch", "/ws/v1/events/stream"
WRITTEN, RING, MOST, LINE = 20_000, 500, 2, 8
READERS = int(os.environ.get("MUSTER_OLD_READERS", "40"))
ROUNDS = int(os.environ.get("MUSTER_OLD_ROUNDS", "10"))
# No connection is used twice: on a busy machine, the server may close an idle one while a request is sent on it.
LIMITS = httpx.Limits(max_connections=READERS + 10, max_keepalive_connections=0)


@dataclass
class Flood:
    """Clients that read old events again and again, each at its own place or all at the beginning."""

    url: str
    most: int = 2_000
    statuses: Counter[int] = field(default_factory=Counter)
    over: bool = False

    async def run(self, group: asyncio.TaskGroup, client: httpx.AsyncClient) -> None:
        for number in range(READERS):
            group.create_task(self._ask(client, 0 if number % 2 else number * 211, self.most if number % 3 else 50))

    async def _ask(self, client: httpx.AsyncClient, start: int, count: int) -> None:
        while not self.over:
            answer = await client.get(self.url + BATCH, params={"start": start, "count": count})
            self.statuses[answer.status_code] += 1
            if answer.status_code == 200:
                records = await asyncio.to_thread(json.loads, answer.content)
                ids = [record["objectID"] for record in records["EventRecords"]]
                assert ids == [f"app-{n}" for n in range(start, start + count)]
                assert answer.headers["x-muster-events-source"] == "log"
            else:
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "1"
                await asyncio.sleep(0.2)  # sooner than Retry-After


@asynccontextmanager
async def published(kafka_bootstrap: str) -> AsyncIterator[tuple[PublisherService, Feeder]]:
    wanted = LogSettings(
        backend="kafka", kafka_bootstrap_servers=kafka_bootstrap, topic_prefix=f"t{uuid4().hex}.", partitions=1
    )
    log = make_log(wanted, SystemClock())
    await log.start()
    feeder = Feeder(log, wanted.topics())
    settings = PublisherSettings(
        http_address="127.0.0.1:0", ring_capacity=RING, old_reads_max=MOST, old_reads_waiting_max=LINE
    )
    service = PublisherService(settings, log, wanted.topics(), SystemClock())
    try:
        await feeder.events("rm", range(WRITTEN))
        await service.start()
        yield service, feeder
    finally:
        await service.stop()
        await log.close()


async def test_the_ring_and_the_following_go_on_while_many_read_what_is_old(kafka_bootstrap: str) -> None:
    async with (
        published(kafka_bootstrap) as (service, feeder),
        httpx.AsyncClient(timeout=60, limits=LIMITS) as client,
    ):
        ring, reads, url = service.rings.get("rm"), service.old_reads, f"http://127.0.0.1:{service.http_port}"
        assert ring is not None
        flood, beside, end = Flood(url), list[int](), WRITTEN
        transport = httpx.ASGITransport(service.asgi)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group, httpx.AsyncClient(transport=transport, base_url=url) as direct:
            await flood.run(group, client)
            await eventually(lambda: reads.running == MOST and reads.waiting == LINE)
            for _ in range(ROUNDS):
                # 1. new events come into the ring
                await feeder.events("rm", range(end, end + 50))
                end += 50
                await eventually(lambda end=end: ring.next_id == end)
                # 2. the ring answers while old reads run
                await eventually(lambda: reads.running == MOST)
                old_before = flood.statuses[200]
                answer = await direct.get(BATCH, params={"start": end - 50})
                beside.append(flood.statuses[200] - old_before)
                assert answer.headers["x-muster-events-source"] == "ring"
                ids = [record["objectID"] for record in answer.json()["EventRecords"]]
                assert ids == [f"app-{n}" for n in range(end - 50, end)]
            await eventually(lambda: flood.statuses[200] >= 20, within_s=60)
            flood.over = True
        # 3. never more old reads than allowed; the others got Retry-After
        assert reads.running_peak == MOST
        assert flood.statuses[503] > 0
        assert set(flood.statuses) == {200, 503}
        # 4. no ring answer waited for more old answers than run at once (and those just done)
        assert max(beside) <= 2 * MOST
        await eventually(lambda: (reads.running, reads.waiting) == (0, 0))


async def test_streams_and_batches_from_the_past_all_come_to_the_present(kafka_bootstrap: str) -> None:
    async with (
        published(kafka_bootstrap) as (service, feeder),
        httpx.AsyncClient(timeout=60, limits=LIMITS) as client,
    ):
        ring, reads, url = service.rings.get("rm"), service.old_reads, f"http://127.0.0.1:{service.http_port}"
        assert ring is not None
        seeks, flood, count, end = metrics.LOG_LOOKUP_SEEKS._value.get(), Flood(url, 300), 3, WRITTEN + 200

        async def follow(start: int) -> None:
            async with client.stream("GET", f"{url}{STREAM}?start={start}") as response:
                lines = response.aiter_lines()
                assert "InstanceUUID" in await anext(lines)
                for number in range(start, end):
                    assert f'"objectID":"app-{number}"' in await anext(lines), number

        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(follow(number * 6_000)) for number in range(count)]
            await eventually(lambda: reads.running > 0)
            await flood.run(group, client)
            await feeder.events("rm", range(WRITTEN, end))
            await eventually(lambda: ring.next_id == end)
            async with asyncio.timeout(90):
                await asyncio.wait(streams)
            flood.over = True
        assert reads.running_peak <= MOST
        # A stream seeks at most once for each 2,048 events, a batch a few times.
        walked = sum(end - number * 6_000 for number in range(count)) // 2_048 + 2 * count
        assert metrics.LOG_LOOKUP_SEEKS._value.get() - seeks <= walked + 5 * flood.statuses[200]
