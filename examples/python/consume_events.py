"""A consumer of a derived topic that sees each event once, however often it is delivered.

Derived topics are written at least once: after a crash a stretch of them comes again. Each record says in its header
`origin` which record of si.events it was; within a partition these offsets only grow, so what is not above the highest
one that was taken is a repeat. This program keeps that offset together with what it makes of the events (here: counts,
in one JSON file that is replaced as a whole), so it may be killed at any moment itself.

    python consume_events.py localhost:9092 --topic si.events.app.v1 --file counts.json [--until-end]
"""

import argparse
import asyncio
import json
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from muster_proto.si.v1.si_pb2 import EventRecord  # or stubs of your own, from proto/si/v1/si.proto


class Counts:
    """What this consumer makes of the events, and how far it is; both in one file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        kept = json.loads(file.read_text()) if file.exists() else {}
        self.places = {int(partition): place for partition, place in kept.get("places", {}).items()}
        self.events = kept.get("events", {})
        self.repeats = kept.get("repeats", 0)

    def take(self, record) -> None:
        origin = int(dict(record.headers)["origin"].decode().rsplit("/", 1)[1])
        _, highest = self.places.get(record.partition, (0, -1))
        if origin > highest:
            event, highest = EventRecord.FromString(record.value), origin
            name = f"{EventRecord.ChangeType.Name(event.eventChangeType)} " + (
                EventRecord.ChangeDetail.Name(event.eventChangeDetail)
            )
            self.events[name] = self.events.get(name, 0) + 1
        else:
            self.repeats += 1
        self.places[record.partition] = (record.offset + 1, highest)

    def keep(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"places": self.places, "events": self.events, "repeats": self.repeats}, indent=2))
        new.replace(self._file)


async def main(bootstrap: str, topic: str, file: Path, until_end: bool) -> None:
    counts = Counts(file)
    # (A consumer of a topic that is not there would wait for it.)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as asking:
        if topic not in await asking.topics():
            raise SystemExit(f"there is no topic {topic}: does `muster derive` run, and is there a prefix?")
    # No group: the places are in the file, with the counts.
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = consumer.assignment()
        for partition in partitions:
            consumer.seek(partition, counts.places.get(partition.partition, (0, -1))[0])
        ends = await consumer.end_offsets(partitions)
        while True:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    counts.take(record)
            counts.keep()
            if until_end and all([await consumer.position(one) >= ends[one] for one in partitions]):
                break
    finally:
        await consumer.stop()
    for name, number in sorted(counts.events.items()):
        print(f"{number:8} {name}")
    print(f"{counts.repeats:8} repeats dropped")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap", help="host:port of a Kafka broker")
    parser.add_argument("--topic", default="si.events.app.v1")
    parser.add_argument("--file", type=Path, default=Path("counts.json"))
    parser.add_argument("--until-end", action="store_true", help="end when everything there is now is taken")
    given = parser.parse_args()
    asyncio.run(main(given.bootstrap, given.topic, given.file, given.until_end))
