"""Today's Muster starts on what earlier versions wrote (tests/frozen), and earlier versions can read what it writes."""

from __future__ import annotations

import asyncio
import json
import lzma
import subprocess
import tarfile
import urllib.error
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from e2e import wall_clock
from frozen.furnish import CURRENT, PREVIOUS
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict
from integration.gateway_rig import Channel
from muster_bus.backends.sqlite_file_reader import LogFile
from muster_bus.topics import Topics, parse_state_key
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.local_process import muster_command
from up import Up
from waiting import eventually

FROZEN = Path(__file__).parents[1] / "frozen"
VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in FROZEN.glob("*.tar.xz"))
# A moment after the samples were written: time-outs and retention count from there.
NOW = {"muster-0.2.0": "@2026-11-25 23:03:20"}
HOSTS = """
- {kind: node, id: host-1, capacity: {vcore: "32", memory: 128Gi}}
- {kind: allocation, id: db-1, node_id: host-1, quantities: {vcore: "8", memory: 64Gi}}
"""

pytestmark = pytest.mark.timeout(600)


def unpacked(version: str, directory: Path) -> Up:
    """A Muster that is not started yet, on what the version wrote."""
    data = directory / "data"
    data.mkdir()
    with tarfile.open(FROZEN / f"{version}.tar.xz") as archive:
        archive.extractall(data, filter="data")
    (directory / "hosts.yaml").write_text(HOSTS)
    (directory / "settings.toml").write_text(
        f'[scheduler.external.informers.vms]\nkind = "file"\npath = "hosts.yaml"\nrm = "{CURRENT}"\n'
    )
    (directory / "now").write_text(NOW[version] + "\n")
    clock = {**wall_clock.environment(directory / "now"), "TZ": "UTC"}
    return Up(directory, "--settings", str(directory / "settings.toml"), environment=clock)


def missing(old: Any, new: Any, where: str = "") -> list[str]:
    """What an earlier version showed and this one does not. Only allocations may have another order."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [each for key, value in old.items() for each in missing(value, new.get(key), f"{where}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) <= len(new):
        pairs = enumerate(zip(by_key(old), by_key(new), strict=False))
        return [each for place, (one, other) in pairs for each in missing(one, other, f"{where}[{place}]")]
    return [] if old == new else [f"{where}: {old!r}, now {new!r}"]


def by_key(items: list[Any]) -> list[Any]:
    """Allocations by their keys; other items as they are."""
    if not all(isinstance(item, dict) and "allocationKey" in item for item in items):
        return items
    return sorted(items, key=lambda item: str(item["allocationKey"]))


def verify(data: Path) -> None:
    verified = subprocess.run(
        muster_command("verify", "--data-dir", str(data)), capture_output=True, text=True, timeout=240
    )
    assert verified.returncode == 0, verified


@pytest.mark.parametrize("version", VERSIONS)
async def test_todays_version_goes_on_with_what_an_earlier_one_wrote(tmp_path: Path, version: str) -> None:
    up = unpacked(version, tmp_path)
    shown = json.loads(lzma.decompress((FROZEN / f"{version}.shown.json.xz").read_bytes()))
    try:
        await up.start()

        lacks = [""]

        def shows_all() -> bool:
            lacks.clear()
            for name, old in shown.items():
                rm_id, path = name.split(" ")
                count = "&count=10000" if path == "events/batch" else ""
                try:
                    answer = json.loads(up.get(f"/ws/v1/{path}?rm={rm_id}{count}")[1])
                except urllib.error.HTTPError as error:  # a follower has not heard of the RM yet
                    answer = f"{error.code} {error.reason}"
                lacks.extend(missing(old, answer, name))
            return not lacks

        with suppress(AssertionError):
            await eventually(shows_all, "the followers have caught up")
        assert lacks == []
        channel = Channel(int(up.grpc.rpartition(":")[2]))
        for rm_id, app in ((CURRENT, "runs"), (PREVIOUS, "app")):
            stream = channel.open(StreamKind.ALLOCATION, rm_id)
            more = si.Allocation(allocationKey="more", applicationID=app, partitionName="default")
            more.resourcePerAlloc.resources["vcore"].value = 1
            request = si.AllocationRequest(rmID=rm_id)
            if rm_id == CURRENT:
                request.allocations.append(more)
            else:
                # Its node is full, and asks of the earlier version wait. They come first.
                nodes = channel.open(StreamKind.NODE, rm_id)
                new = si.NodeInfo(nodeID="new", action=si.NodeInfo.CREATE)
                new.schedulableResource.resources["vcore"].value = 100_000
                new.schedulableResource.resources["memory"].value = 10**12
                await nodes.send(si.NodeRequest(rmID=rm_id, nodes=[new]))
                request.asks.add(allocationKey="more", applicationID=app, partitionName="default", maxAllocations=1)
                request.asks[0].resourceAsk.resources["vcore"].value = 1
            await stream.send(request)
            while "more" not in [made.allocationKey for made in (await stream.receive()).new]:
                pass
        await channel.close()
        assert up.process.stop() == 0
        await asyncio.to_thread(verify, up.data)
        assert_readable(up.data / "log.db", old_messages(version))
    finally:
        up.process.kill()


# ---- the way back ----------------------------------------------------------------------------------------------------

KINDS = {
    "rm": "RmObject", "reg": "RegistrationObject", "forgotten": "ForgottenObject", "queue": "QueueObject",
    "node": "NodeObject", "app": "ApplicationObject", "rejected": "ApplicationObject", "ask": "AskObject",
    "alloc": "AllocationObject", "why": "ReasonObject", "source": "SourceObject", "ext": "ExternalRecord",
}  # fmt: skip


def descriptors(version: str) -> descriptor_pb2.FileDescriptorSet:
    """The protocols of a version."""
    raw = lzma.decompress((FROZEN / f"{version}.protos.xz").read_bytes())
    return descriptor_pb2.FileDescriptorSet.FromString(raw)


def old_messages(version: str) -> dict[str, Any]:
    """The version's messages by name, beside those of today."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors(version).file:
        pool.Add(file)
    names = {*KINDS.values(), "RequestEnvelope", "ResponseEnvelope"}
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"muster.bus.v1.{name}")) for name in names
    }


def assert_readable(path: Path, old: dict[str, Any]) -> None:
    """An earlier version reads each record as it is: what it does not know, it passes over."""
    topics, kinds = Topics(), set[str]()
    now: ModuleType
    with LogFile(path) as log:
        for topic, partition in log.partition_ids:
            first, end = log.bounds(topic, partition)
            while first < end:
                records, first = log.read(topic, partition, first)
                for record in records:
                    if record.value is None or topic not in (topics.requests, topics.responses, topics.state):
                        continue
                    name, now = "RequestEnvelope", envelope_pb2
                    if topic == topics.responses:
                        name = "ResponseEnvelope"
                    if topic == topics.state:
                        assert record.key is not None
                        kind = parse_state_key(record.key)[1]
                        name, now = KINDS[kind], state_pb2
                        kinds.add(kind)
                    new = getattr(now, name).FromString(record.value)
                    read = MessageToDict(old[name].FromString(record.value))
                    assert missing(read, MessageToDict(new), name) == []
    assert kinds == set(KINDS), "the sample has an object of each kind"


@pytest.mark.parametrize("version", VERSIONS)
def test_no_field_of_an_earlier_version_has_another_meaning(version: str) -> None:
    now = descriptor_pool.Default()
    changed: list[str] = []

    def compare(message: descriptor_pb2.DescriptorProto, full_name: str) -> None:
        try:
            today = now.FindMessageTypeByName(full_name)
        except KeyError:
            changed.append(f"{full_name} is gone")
            return
        for field in message.field:
            same = today.fields_by_number.get(field.number)
            if same is None or (same.name, same.type) != (field.name, field.type):
                changed.append(f"{full_name}.{field.name} = {field.number}")
        for nested in message.nested_type:
            if not nested.options.map_entry:
                compare(nested, f"{full_name}.{nested.name}")

    for file in descriptors(version).file:
        if file.package.startswith(("muster", "si")):
            for message in file.message_type:
                compare(message, f"{file.package}.{message.name}")
    assert changed == []
