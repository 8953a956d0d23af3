"""Materialises the objects of si.state.v1, prints what there is, and follows (docs/state-topic.md).

Start Muster (`muster up --data-dir /tmp/muster`), then: `python examples/python/objects.py /tmp/muster`
With Kafka: `python examples/python/objects.py 127.0.0.1:9092`

Without --follow it ends when it has caught up. It asks no service of Muster, and changes nothing.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from muster_bus.backends.sqlite_file_reader import LogFile
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2

TOPIC = "si.state.v1"
POLL_S = 0.5
MESSAGES = {
    "rm": state_pb2.RmObject,
    "reg": state_pb2.RegistrationObject,
    "queue": state_pb2.QueueObject,
    "node": state_pb2.NodeObject,
    "app": state_pb2.ApplicationObject,
    "rejected": state_pb2.ApplicationObject,
    "ask": state_pb2.AskObject,
    "alloc": state_pb2.AllocationObject,
    "why": state_pb2.ReasonObject,
}


class Key(NamedTuple):
    rm_id: str
    kind: str
    parts: tuple[str, ...]  # the partition is the first of them, but of rm and reg


def parse(key: bytes) -> Key:
    rm_id, kind, *parts = (text.replace("%2F", "/").replace("%25", "%") for text in key.decode().split("/"))
    return Key(rm_id, kind, tuple(parts))


class Objects:
    """All objects, by key: the newest value of each, and none that is gone."""

    def __init__(self) -> None:
        self.by_key: dict[Key, Any] = {}
        self.instances: dict[str, str] = {}

    def take(self, key: bytes, value: bytes | None) -> None:
        found = parse(key)
        message = MESSAGES.get(found.kind)
        if message is None:
            return  # a kind of a newer Muster
        if value is None:
            self.by_key.pop(found, None)
            return
        self.by_key[found] = read = message.FromString(value)
        if found.kind == "rm" and self.instances.setdefault(found.rm_id, read.instance_uuid) != read.instance_uuid:
            # Another log: what was known of the RM is of another world.
            self.instances[found.rm_id] = read.instance_uuid
            self.by_key = {old: kept for old, kept in self.by_key.items() if old.rm_id != found.rm_id or old == found}

    def counts(self) -> dict[str, dict[str, Any]]:
        """By RM and partition, "rm/partition": what there is."""
        found: dict[str, dict[str, Any]] = {}
        for key, value in self.by_key.items():
            if key.kind in ("rm", "reg"):
                continue
            there = found.setdefault(
                f"{key.rm_id}/{key.parts[0]}",
                {
                    "life": envelope_pb2.RmLifecycle.State.Name(self.by_key[Key(key.rm_id, "rm", ("-",))].state),
                    "queues": 0, "nodes": 0, "applications": Counter(), "pending": 0, "allocations": 0,
                    "used": Counter(), "capacity": Counter(),
                },
            )  # fmt: skip
            match key.kind:
                case "queue":
                    there["queues"] += 1
                case "node":
                    there["nodes"] += 1
                    there["capacity"].update(value.capacity.values)
                case "app" | "rejected":
                    there["applications"][value.state] += 1
                case "ask":
                    there["pending"] += value.pending
                case "alloc" if not value.foreign:
                    there["allocations"] += 1
                    there["used"].update(value.demand.resource.values)
        return dict(sorted(found.items()))


# ---- where records come from: (key, value), and None when all is read that was there ---------------------------------

Records = AsyncIterator[tuple[bytes, bytes | None] | None]


async def from_file(data_dir: Path) -> Records:
    if not (data_dir / "log.db").is_file():
        raise SystemExit(f"there is no log.db in {data_dir}: expected the data directory of `muster up`")
    with LogFile(data_dir / "log.db") as log:
        partitions = log.partitions(TOPIC)
        ends = {partition: log.bounds(TOPIC, partition)[1] for partition in partitions}
        offsets = {partition: log.bounds(TOPIC, partition)[0] for partition in partitions}
        while True:
            quiet = True
            for partition in partitions:
                records, offsets[partition] = log.read(TOPIC, partition, offsets[partition])
                for record in records:
                    quiet = False
                    yield record.key or b"", record.value
            if all(offsets[partition] >= end for partition, end in ends.items()):
                yield None
            if quiet:
                await asyncio.sleep(POLL_S)


async def from_kafka(servers: str, topic: str) -> Records:
    from aiokafka import AIOKafkaConsumer

    # (A consumer of a topic that is not there would wait for it.)
    async with AIOKafkaConsumer(bootstrap_servers=servers) as asking:
        if topic not in await asking.topics():
            raise SystemExit(f"there is no topic {topic}: is it another Kafka, or has it a prefix (--topic)?")
    # read_committed: what a scheduler wrote that died before its commit never happened.
    # "none": a position that is gone ends this with an error, as the objects known so far are too old to go on with.
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="none"
    )
    await consumer.start()
    try:
        partitions = list(consumer.assignment())
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        while True:
            for records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                for record in records:
                    yield record.key, record.value
            # (The position passes over holes: markers of transactions are offsets, too.)
            if all([await consumer.position(partition) >= end for partition, end in ends.items()]):
                yield None
    finally:
        await consumer.stop()


# ---- the program -----------------------------------------------------------------------------------------------------


async def main(where: str, topic: str, follow: bool, as_json: bool) -> None:
    objects, shown = Objects(), ""
    async for record in from_kafka(where, topic) if ":" in where else from_file(Path(where)):
        if record is not None:
            objects.take(*record)
            continue
        # Caught up: what is in `objects` is what there is.
        counts = objects.counts()
        text = json.dumps(counts) if as_json else "\n".join(map(sentence, counts.items())) or "there is nothing"
        if text != shown:
            print(text, flush=True)
            shown = text
        if not follow:
            break


def sentence(item: tuple[str, dict[str, Any]]) -> str:
    name, there = item
    states = ", ".join(f"{count} {state}" for state, count in sorted(there["applications"].items())) or "none"
    used = ", ".join(f"{amount} of {there['capacity'][kind]} {kind}" for kind, amount in sorted(there["used"].items()))
    return (
        f"{name} ({there['life']}): {there['nodes']} nodes, {there['queues']} queues, applications: {states}; "
        f"{there['allocations']} allocations ({used or 'nothing used'}), {there['pending']} asks pending"
    )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("where", help="Muster's data directory, or Kafka's host:port")
    arguments.add_argument("--topic", default=TOPIC, help="on Kafka, with a prefix if there is one [%(default)s]")
    arguments.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    arguments.add_argument("--json", action="store_true", help="print JSON, a line for each change")
    given = arguments.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(main(given.where, given.topic, given.follow, given.json))
