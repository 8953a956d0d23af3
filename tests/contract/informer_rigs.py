"""A rig for each kind of informer: a source on a real server or real files, which tests write, break and repair."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import aiokafka.client
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from muster_bus.clock import SystemClock
from muster_informers.contract import ChangeType, Delta, Document, InformerContext, ListWatch
from muster_informers.sources import file, http, kafka
from muster_informers.sources import redis as redis_informer
from muster_replay.local_process import free_ports
from redis.asyncio import Redis

Key = tuple[str, str]

DEADLINE_S = 60  # for what must happen at some time


def key_of(document: Document) -> Key:
    return str(document.get("kind", "node")), str(document["id"])


class Rig(Protocol):
    """The operations of the contract's tests on a source.

    :cvar patient: options for a test in which the source is there all the time, if only a busy machine lets it answer.
        (Else a test would wait long for what is away.)
    """

    patient: ClassVar[Mapping[str, object]]

    def make(self, **options: object) -> ListWatch:
        """Makes an informer's source with its factory. It is closed with the rig."""
        ...

    async def put(self, document: Document) -> None: ...

    async def delete(self, key: Key) -> None: ...

    async def put_garbage(self, key: Key) -> None:
        """Replaces an object by data that is no valid document, but whose kind and id are known."""
        ...

    async def down(self) -> None:
        """Makes the source unreachable."""
        ...

    async def up(self) -> None: ...

    async def lose_place(self) -> None:
        """Makes all cursors invalid. The objects stay."""
        ...

    def connections(self) -> int: ...

    async def close(self) -> None: ...


class RigWithSpoiltWhole(Rig, Protocol):
    """The rig of a kind whose whole answer can be invalid."""

    async def spoil(self) -> None: ...

    async def mend(self) -> None: ...


def context(tmp_path: Path) -> InformerContext:
    return InformerContext("hosts", SystemClock(), str(tmp_path))


async def next_deltas(source: ListWatch, cursor: str) -> list[Delta]:
    async with asyncio.timeout(DEADLINE_S), aclosing(source.watch(cursor)) as watch:  # type: ignore[type-var]
        async for deltas in watch:
            if deltas:
                return list(deltas)
    raise AssertionError("a watch ended by itself")


async def told(source: ListWatch, cursor: str) -> list[tuple[ChangeType, object]]:
    """(type, object id) of each change."""
    return [(delta.type, delta.document["id"]) for delta in await next_deltas(source, cursor)]


class Door:
    """A TCP port in front of a server, which tests can close.

    :ivar port: where it is; the same after it was closed and opened again.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        (self.port,) = free_ports(1)  # (none of the system's own choice: a client that retries would take it meanwhile)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._through, "127.0.0.1", self.port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def connections(self) -> int:
        return len(self._tasks)

    async def _through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there = writer
        try:
            there_reader, there = await asyncio.open_connection(*self._target)
            self._writers |= {writer, there}
            if self._server is not None:
                await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))
        finally:
            self._writers -= {writer, there}
            writer.transport.abort()
            there.transport.abort()
            self._tasks.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


# ---- file -----------------------------------------------------------------------------------------------------------


class FileRig:
    """A file that each change replaces by renaming."""

    patient: ClassVar[Mapping[str, object]] = {}

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path = directory / "hosts.json"
        self._objects: dict[Key, Document] = {}
        self._twice: list[Document] = []
        self._sources: list[ListWatch] = []
        self._is_up = True
        self._write()

    def make(self, **options: object) -> ListWatch:
        fast = {"path": "hosts.json", "poll_s": 0.02, "settle_s": 0.01}
        source = file.make_informer({**fast, **options}, context(self._directory))
        self._sources.append(source)
        return source

    async def put(self, document: Document) -> None:
        self._objects[key_of(document)] = document
        self._write()

    async def delete(self, key: Key) -> None:
        del self._objects[key]
        self._write()

    async def put_garbage(self, key: Key) -> None:
        await self.put({"kind": key[0], "id": key[1], "schedulable": "perhaps"})

    async def down(self) -> None:
        self._is_up = False
        self.path.unlink()

    async def up(self) -> None:
        self._is_up = True
        self._write()

    async def lose_place(self) -> None:
        document = next(iter(self._objects.values()))
        self._twice = [{**document, "schedulable": False}]
        self._write()

    async def spoil(self) -> None:
        self.path.write_text('[{"id": "a"}, {"id"')

    async def mend(self) -> None:
        self._write()

    def connections(self) -> int:
        return 0

    async def close(self) -> None:
        for source in self._sources:
            await source.close()

    def _write(self) -> None:
        if self._is_up:
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps([*self._objects.values(), *self._twice]))
            beside.rename(self.path)


# ---- http -----------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Reply(NamedTuple):
    """What a server answers.

    :param cut: bytes of the body that are really sent before the connection ends; None: all.
    """

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b""
    cut: int | None = None
    has_length: bool = True


class HttpServer:
    """An HTTP server whose answers the test sets, and which records its requests."""

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        (self.port,) = free_ports(1)
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self, secure: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=secure)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers.values():
            writer.transport.abort()
        await asyncio.gather(*self._writers, return_exceptions=True)

    def connections(self) -> int:
        return len(self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._writers[task] = writer
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    pass
        finally:
            writer.transport.abort()
            del self._writers[task]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(method, path, headers, body)
        self.requests.append(request)
        reply = self.answer(request)
        lines = [f"HTTP/1.1 {reply.status} So"]
        if reply.has_length:
            lines.append(f"Content-Length: {len(reply.body)}")
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if reply.status == 304 else reply.body[: reply.cut]))
        await writer.drain()
        return reply.cut is None and reply.has_length


class HttpRig:
    """A server with ETags and gzip whose objects stand on pages of three."""

    PAGE = 3
    patient: ClassVar[Mapping[str, object]] = {"timeout_s": 60}

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._objects: dict[Key, Document] = {}
        self._twice: list[Document] = []
        self._is_spoilt = False
        self._sources: list[ListWatch] = []
        self.server = HttpServer(self._answer)

    async def open(self) -> None:
        await self.server.open()

    def make(self, **options: object) -> ListWatch:
        fast = {"url": f"{self.server.url}/hosts", "poll_s": 0.02, "timeout_s": 5}
        source = http.make_informer({**fast, **options}, context(self._directory))
        self._sources.append(source)
        return source

    async def put(self, document: Document) -> None:
        self._objects[key_of(document)] = document

    async def delete(self, key: Key) -> None:
        del self._objects[key]

    async def put_garbage(self, key: Key) -> None:
        await self.put({"kind": key[0], "id": key[1], "schedulable": "perhaps"})

    async def down(self) -> None:
        await self.server.close()

    async def up(self) -> None:
        await self.server.open()

    async def lose_place(self) -> None:
        document = next(iter(self._objects.values()))
        self._twice = [{**document, "schedulable": False}]

    async def spoil(self) -> None:
        self._is_spoilt = True

    async def mend(self) -> None:
        self._is_spoilt = False

    def connections(self) -> int:
        return self.server.connections()

    async def close(self) -> None:
        for source in self._sources:
            await source.close()
        await self.server.close()

    def _answer(self, request: Request) -> Reply:
        if self._is_spoilt:
            return Reply(body=b'[{"id": "a"}, {"id"', headers={"Content-Type": "application/json"})
        page = int(request.path.partition("page=")[2] or 0)
        everything = [*self._objects.values(), *self._twice]
        some = everything[page * self.PAGE : (page + 1) * self.PAGE]
        body = json.dumps(some).encode()
        headers = {"Content-Type": "application/json; charset=utf-8", "ETag": f'W/"{hash(body)}-{len(everything)}"'}
        if len(everything) > (page + 1) * self.PAGE:
            headers["Link"] = f'</hosts>; rel="first", <?page={page + 1}>; rel="next"'
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Reply(304, headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"], body = "gzip", gzip.compress(body)
        return Reply(200, headers, body)


# ---- Kafka ----------------------------------------------------------------------------------------------------------


class KafkaRig:
    """A topic of two partitions. The informer connects through a door, whatever address the broker announces."""

    patient: ClassVar[Mapping[str, object]] = {"timeout_s": 60}

    def __init__(self, bootstrap: str, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.bootstrap = bootstrap
        host, _, port = bootstrap.partition(":")
        self._directory = directory
        self.topic = f"hosts-{uuid.uuid4().hex[:12]}"
        self._door = Door(host, int(port))
        self._patch = patch
        self._sources: list[ListWatch] = []
        self._keys: set[Key] = set()
        self.producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0)

    async def open(self, **configs: str) -> None:
        await self.producer.start()
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        settings = {"cleanup.policy": "compact,delete", **configs}
        await admin.create_topics([NewTopic(self.topic, 2, 1, topic_configs=settings)])
        await admin.close()
        await self._door.open()
        connect = aiokafka.client.create_conn

        async def through(host: str, port: int, *arguments: Any, **more: Any) -> Any:
            if more.get("client_id") == "muster-informer":
                host, port = "127.0.0.1", self._door.port
            return await connect(host, port, *arguments, **more)

        self._patch.setattr(aiokafka.client, "create_conn", through)

    def make(self, **options: object) -> ListWatch:
        fast = {"bootstrap_servers": self.bootstrap, "topic": self.topic, "timeout_s": 2}
        source = kafka.make_informer({**fast, **options}, context(self._directory))
        self._sources.append(source)
        return source

    async def put(self, document: Document) -> None:
        self._keys.add(key_of(document))
        await self.write("/".join(key_of(document)), json.dumps(document).encode())

    async def delete(self, key: Key) -> None:
        self._keys.discard(key)
        await self.write("/".join(key), None)

    async def put_garbage(self, key: Key) -> None:
        await self.write("/".join(key), b"\xff{")

    async def write(self, key: str, value: bytes | None) -> None:
        await self.producer.send_and_wait(self.topic, key=key.encode(), value=value)

    async def down(self) -> None:
        await self._door.close()

    async def up(self) -> None:
        await self._door.open()

    async def lose_place(self) -> None:
        """Writes everything again and deletes the older records, as retention does."""
        found = []
        source = kafka.make_informer(
            {"bootstrap_servers": self.bootstrap, "topic": self.topic}, context(self._directory)
        )
        found = (await source.list()).documents
        await source.close()
        before = await self.ends()
        for partition in (0, 1):
            await self.producer.send_and_wait(self.topic, key=b"node/passing", value=b"{}", partition=partition)
        for document in found:
            await self.put(document)
        for partition in (0, 1):
            await self.producer.send_and_wait(self.topic, key=b"node/passing", value=None, partition=partition)
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        await admin.delete_records({place: RecordsToDelete(end + 1) for place, end in before.items()})
        await admin.close()

    async def ends(self) -> dict[TopicPartition, int]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap)
        await consumer.start()
        try:
            ends: dict[TopicPartition, int] = await consumer.end_offsets(
                [TopicPartition(self.topic, partition) for partition in (0, 1)]
            )
            return ends
        finally:
            await consumer.stop()

    def connections(self) -> int:
        return self._door.connections()

    async def close(self) -> None:
        for source in self._sources:
            await source.close()
        await self._door.close()
        await self.producer.stop()
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        await admin.delete_topics([self.topic])
        await admin.close()


# ---- Redis ----------------------------------------------------------------------------------------------------------


class RedisRig:
    """A hash and a stream, written together."""

    patient: ClassVar[Mapping[str, object]] = {"timeout_s": 60}

    def __init__(self, url: str, directory: Path) -> None:
        self._directory = directory
        address, _, self._database = url.removeprefix("redis://").partition("/")
        host, _, port = address.rpartition("@")[2].partition(":")
        self._door = Door(host, int(port))
        self.redis: Any = Redis.from_url(url)
        prefix = f"test:{uuid.uuid4().hex[:12]}"
        self.key, self.stream, self.back = f"{prefix}:hosts", f"{prefix}:changes", f"{prefix}:back"
        self._sources: list[ListWatch] = []

    async def open(self) -> None:
        await self._door.open()

    def make(self, **options: object) -> ListWatch:
        url = f"redis://127.0.0.1:{self._door.port}/{self._database}"
        given = {"url": url, "key": self.key, "stream": self.stream, "timeout_s": 3, **options}
        source = redis_informer.make_informer(given, context(self._directory))
        self._sources.append(source)
        return source

    async def put(self, document: Document) -> None:
        kind, object_id = key_of(document)
        await self.write("/".join((kind, object_id)), {"kind": kind, "id": object_id, "document": json.dumps(document)})

    async def delete(self, key: Key) -> None:
        async with self.redis.pipeline(transaction=True) as together:
            together.hdel(self.key, "/".join(key))
            together.xadd(self.stream, {"kind": key[0], "id": key[1], "op": "delete"})
            await together.execute()

    async def put_garbage(self, key: Key) -> None:
        await self.write("/".join(key), {"kind": key[0], "id": key[1], "document": b"\xff{"})

    async def write(self, field: str, entry: Mapping[str, str | bytes]) -> None:
        async with self.redis.pipeline(transaction=True) as together:
            together.hset(self.key, field, entry["document"])
            together.xadd(self.stream, dict(entry))
            await together.execute()

    async def down(self) -> None:
        await self._door.close()

    async def up(self) -> None:
        await self._door.open()

    async def lose_place(self) -> None:
        for field, value in (await self.redis.hgetall(self.key)).items():
            kind, _, object_id = field.decode().partition("/")
            await self.redis.xadd(self.stream, {"kind": kind, "id": object_id, "document": value})
        await self.redis.xadd(self.stream, {"kind": "node", "id": "passing", "op": "delete"})
        await self.redis.xtrim(self.stream, maxlen=1, approximate=False)

    async def spoil(self) -> None:
        await self.redis.rename(self.key, f"{self.key}:aside")
        await self.redis.set(self.key, "a text")

    async def mend(self) -> None:
        await self.redis.delete(self.key)
        await self.redis.rename(f"{self.key}:aside", self.key)

    def connections(self) -> int:
        return self._door.connections()

    async def close(self) -> None:
        for source in self._sources:
            await source.close()
        await self._door.close()
        await self.redis.delete(self.key, self.stream, self.back)
        await self.redis.aclose()


@contextlib.asynccontextmanager
async def rig_of(kind: str, request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Any]:
    """Opens a rig, and closes it at the end."""
    rig: FileRig | HttpRig | KafkaRig | RedisRig
    patch = request.getfixturevalue("monkeypatch")
    for module in (kafka, redis_informer):
        patch.setattr(module, "HEARTBEAT_S", 0.3)
    match kind:
        case "file":
            rig = FileRig(directory)
        case "http":
            rig = HttpRig(directory)
            await rig.open()
        case "kafka":
            rig = KafkaRig(request.getfixturevalue("kafka_bootstrap"), directory, patch)
            await rig.open()
        case _:
            rig = RedisRig(request.getfixturevalue("redis_url"), directory)
            await rig.open()
    try:
        yield rig
    finally:
        await rig.close()
