"""A Faust application on a derived topic: an agent, a table, a window, and each event counts once.

It counts the allocations that applications got: in all (a table), and by minutes of the events' own time (a windowed
table). Derived topics are written at least once, and so does Faust read them. Hence each entry of a table holds, beside
its sum, the id of the last event in it, by the RM's instance: ids of an instance only grow, so one that is not above it
is in the sum already. It may be killed at any moment.

    python faust_consumer.py localhost:9092 --topic si.events.app.v1 --group counts --file counts.json
"""

import argparse
import asyncio
import json
from pathlib import Path

import faust
from aiokafka.admin import AIOKafkaAdminClient
from mode import CrashingSupervisor
from muster_event_publisher.derive.faust_patches import (  # or a copy: it needs Faust alone
    PatchedTable,
    PatchedTransport,
)
from muster_proto.si.v1.si_pb2 import EventRecord  # or stubs of your own, from proto/si/v1/si.proto

BATCH_EVENTS = 500
KEPT_S = 86_400  # of windows


def application(bootstrap: str, topic: str, group: str, partitions: int, file: Path) -> faust.App:
    app = faust.App(
        group, broker=f"kafka://{bootstrap}", topic_partitions=partitions, topic_disable_leader=True,
        consumer_auto_offset_reset="earliest", producer_acks=-1, broker_commit_interval=1.0,
        consumer_group_instance_id=f"{group}-0", broker_session_timeout=10, broker_heartbeat_interval=3,  # back at once
        store="memory://", datadir=file.with_suffix(".faust"), web_enabled=False, autodiscover=False,
        Table=PatchedTable,
    )  # fmt: skip
    app.transport = PatchedTransport(app.conf.broker_consumer, app)
    # A table's partitions are those of what it is made of: then the entries of an RM are where its events are.
    totals = app.Table("totals", default=dict, partitions=partitions)
    minutes = app.Table("minutes", default=dict, partitions=partitions).tumbling(60.0, expires=KEPT_S)
    windows = minutes.relative_to(lambda event: EventRecord.FromString(event.value).timestampNano // 10**9)

    async def count(stream) -> None:
        batch = []
        async for event in stream.noack().events():
            batch.append(event)
            one = EventRecord.FromString(event.value)
            if (one.eventChangeType, one.eventChangeDetail) == (EventRecord.ADD, EventRecord.APP_ALLOC):
                rm, instance, number = (event.headers[name].decode() for name in ("rm", "instance", "id"))
                totals[f"{rm}/{one.objectID}"] = added(totals[f"{rm}/{one.objectID}"], instance, int(number))
                windows[rm] = added(windows[rm].value(), instance, int(number))
            if len(batch) == BATCH_EVENTS or stream.channel.queue.empty():
                # First what was counted is on Kafka, then the events are done.
                await totals.written()
                await minutes.table.written()
                for done in batch:
                    done.ack()
                batch.clear()

    async def show() -> None:
        found = {
            "applications": {key: entry["count"] for key, entry in totals.items()},
            "minutes": {f"{rm}/{int(window[0])}": entry["count"] for (rm, window), entry in minutes.table.data.items()},
        }
        new = file.with_suffix(".new")
        new.write_text(json.dumps(found, indent=2, sort_keys=True))
        new.replace(file)

    events = app.topic(topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
    # (An agent that fails must not go on with the next event: then the ids would say that this one was counted.)
    app.agent(events, supervisor_strategy=CrashingSupervisor)(count)
    app.timer(interval=1.0)(show)
    return app


def added(entry: dict, instance: str, number: int) -> dict:
    """The entry with the event in it."""
    last = entry.get("last", {})
    if number <= last.get(instance, -1):
        return entry
    return {"count": entry.get("count", 0) + 1, "last": {**last, instance: number}}


async def partitions_of(bootstrap: str, topic: str) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        (found,) = await admin.describe_topics([topic])
    finally:
        await admin.close()
    if not found["partitions"]:
        raise SystemExit(f"there is no topic {topic}: does `muster derive` run, and is there a prefix?")
    return len(found["partitions"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap", help="host:port of a Kafka broker")
    parser.add_argument("--topic", default="si.events.app.v1")
    parser.add_argument("--group", default="counts", help="consumer group, and what the tables' topics begin with")
    parser.add_argument("--file", type=Path, default=Path("counts.json"))
    given = parser.parse_args()
    partitions = asyncio.run(partitions_of(given.bootstrap, given.topic))
    app = application(given.bootstrap, given.topic, given.group, partitions, given.file.absolute())
    faust.Worker(app, loglevel="WARNING").execute_from_commandline()
