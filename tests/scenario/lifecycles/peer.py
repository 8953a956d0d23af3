"""A resource manager that knows one generation of the interface, by stubs made of that generation's own tables.

It uses nothing of Muster's: messages are those of ``contract/si_generations``, the calls are gRPC's. What it cannot
read (a field that its generation does not have) it notices, because a real resource manager would lose it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import grpc
from contract.si_generations.build import Generation
from contract.si_generations.current import CURRENT
from contract.si_generations.previous import PREVIOUS
from google.protobuf import json_format, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

GENERATIONS: dict[str, Generation] = {"previous": PREVIOUS, "current": CURRENT}
STREAMS = {
    "UpdateAllocation": ("AllocationRequest", "AllocationResponse"),
    "UpdateApplication": ("ApplicationRequest", "ApplicationResponse"),
    "UpdateNode": ("NodeRequest", "NodeResponse"),
}
SHUTDOWN = ("muster-shutdown", "true")
PATIENCE_S = 60.0
# Muster's own fields, from here up, which a peer of either generation skips (tests/contract/test_si_proto.py).
_OWN_FIELDS_FROM = 50_001


class Heard(NamedTuple):
    """One item of a response.

    :ivar kind: the response's field: new, released, rejected …
    :ivar item: what it says, as plain data: see :func:`plain`.
    """

    kind: str
    item: dict[str, Any]


class Peer:
    """One resource manager of one generation.

    :param target: the gateway, "host:port".
    :ivar heard: what came on each stream and was not taken yet, in order.
    :ivar foreign: what came in fields that this generation does not have.
    :ivar ended: how each stream ended: "CODE: details".
    """

    def __init__(self, target: str, rm_id: str, generation: str) -> None:
        self.target, self.rm_id, self.generation = target, rm_id, generation
        self.classes = _classes(generation)
        self.heard: dict[str, list[Heard]] = {method: [] for method in STREAMS}
        self.foreign: list[str] = []
        self.ended: dict[str, str] = {}
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, Any] = {}
        self._listening: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()

    # ---- what it says ----------------------------------------------------------------------------------------------

    async def register(self, **fields: Any) -> str:
        """Registers; gives "" or how it was refused, "CODE: details"."""
        request = self.message("RegisterResourceManagerRequest", {"rmID": self.rm_id, **fields})
        call = self._connected().unary_unary(
            "/si.v1.Scheduler/RegisterResourceManager",
            request_serializer=_serialize,
            response_deserializer=self.classes["RegisterResourceManagerResponse"].FromString,
        )
        try:
            await call(request, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    async def send(self, method: str, fields: Mapping[str, Any]) -> None:
        """One request on one of the streams, which is opened if it is not."""
        request = self.message(STREAMS[method][0], {"rmID": self.rm_id, **fields})
        call = self._calls.get(method) or self._open(method)
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # it has ended: see ``ended``
            async with asyncio.timeout(PATIENCE_S):
                await call.write(request)

    async def shut_down(self) -> str:
        """Shuts the RM down. Returns the status of the call."""
        call = self._method("UpdateNode")(metadata=(("muster-rm-id", self.rm_id), SHUTDOWN))
        return await _end_of(call)

    def message(self, name: str, fields: Mapping[str, Any]) -> Message:
        """A message of this generation. Raises ``json_format.ParseError`` for a field that it does not have."""
        kind = self.classes[name]
        return json_format.ParseDict(_as_json(kind.DESCRIPTOR, fields), kind())

    async def lose_connection(self) -> None:
        """Breaks the connection in both directions."""
        if self._channel is not None:
            await self._channel.close(None)
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        self._channel, self._calls, self._listening = None, {}, []
        self.ended.clear()

    # ---- what it hears ---------------------------------------------------------------------------------------------

    @property
    def opened(self) -> list[str]:
        """The streams that are open, in the order in which they were."""
        return list(self._calls)

    async def until(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """Waits for the condition, which is checked after each message."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what()}") from None

    def _connected(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.target, options=[("grpc.use_local_subchannel_pool", 1)])
        return self._channel

    def _method(self, method: str) -> Any:
        return self._connected().stream_stream(
            f"/si.v1.Scheduler/{method}",
            request_serializer=_serialize,
            response_deserializer=self.classes[STREAMS[method][1]].FromString,
        )

    def _open(self, method: str) -> Any:
        call = self._calls[method] = self._method(method)()
        self.ended.pop(method, None)
        self._listening.append(asyncio.create_task(self._listen(method, call)))
        return call

    async def _listen(self, method: str, call: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (response := await call.read()) is not grpc.aio.EOF:
                self.foreign += [f"{method}: {word}" for word in foreign_words(response)]
                for one, items in response.ListFields():
                    self.heard[method] += [Heard(one.name, plain(item)) for item in items]
                self._news.set()
        self._calls.pop(method, None)
        self.ended[method] = f"{(await call.code()).name}: {await call.details()}"
        self._news.set()


async def _end_of(call: Any) -> str:
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        return f"{(await call.code()).name}: {await call.details()}"


@cache
def _classes(generation: str) -> dict[str, type[Message]]:
    return GENERATIONS[generation].classes()


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


# ---- messages and plain data ---------------------------------------------------------------------------------------


def plain(message: Message) -> dict[str, Any]:
    """A message as plain data, with every field: enum values by name, a Resource as {type: value}."""
    if message.DESCRIPTOR.name == "Resource":
        return {name: quantity.value for name, quantity in message.resources.items()}  # type: ignore[attr-defined]
    return {one.name: _plain_field(message, one) for one in message.DESCRIPTOR.fields}


def _plain_field(message: Message, one: FieldDescriptor) -> Any:
    value = getattr(message, one.name)
    if _is_map(one):
        return dict(value)
    if one.message_type is not None:
        if one.is_repeated:
            return [plain(item) for item in value]
        return plain(value) if message.HasField(one.name) else None
    if one.enum_type is not None:
        known = one.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value


def _as_json(kind: Descriptor, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as protobuf's JSON has them; a Resource may be said as {type: value}."""
    if kind.name == "Resource":
        return {"resources": {name: {"value": value} for name, value in fields.items()}}
    said: dict[str, Any] = {}
    for name, value in fields.items():
        one = kind.fields_by_name.get(name)
        if one is None or one.message_type is None or _is_map(one):
            said[name] = value
        elif one.is_repeated:
            said[name] = [_as_json(one.message_type, item) for item in value]
        else:
            said[name] = _as_json(one.message_type, value)
    return said


def _is_map(one: FieldDescriptor) -> bool:
    return one.message_type is not None and one.message_type.GetOptions().map_entry


def foreign_words(message: Message) -> Iterator[str]:
    """The fields of a message, at any depth, that its generation does not have."""
    for unknown in unknown_fields.UnknownFieldSet(message):
        if unknown.field_number < _OWN_FIELDS_FROM:
            yield f"{message.DESCRIPTOR.name} has a field {unknown.field_number}: {unknown.data!r}"
    for one, value in message.ListFields():
        if one.message_type is not None and not _is_map(one):
            for item in value if one.is_repeated else (value,):
                yield from foreign_words(item)
