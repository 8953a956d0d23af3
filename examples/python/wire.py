"""One stream of the interface, as these examples need it: say something, hear item after item, each as expected."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1 import si_pb2_grpc

TIMEOUT_S = 120.0  # of a whole run, on a machine that has other work: gRPC ends a stream that is open for longer
Metadata = tuple[tuple[str, str], ...]
OpenStream = Callable[..., Iterable[Message]]


class Unexpected(Exception):
    """The scheduler said something else than it should."""


class Stream:
    """One of an RM's streams, open.

    :param open_stream: the stub's method.
    :param rm_id: said in the metadata as well, so that answers can come before the first message.
    """

    def __init__(self, name: str, open_stream: OpenStream, rm_id: str, *metadata: tuple[str, str]) -> None:
        self.name = name
        self._said: SimpleQueue[Message | None] = SimpleQueue()
        said = (("muster-rm-id", rm_id), *metadata)
        self._items = _items(open_stream(iter(self._said.get, None), timeout=TIMEOUT_S, metadata=said))

    def say(self, message: Message) -> None:
        """Sends a request."""
        self._said.put(message)

    def hear(self, field: str, **expected: Any) -> Any:
        """The next item of a response, printed. Raises Unexpected when it is another one, or none comes.

        :param field: of the response: new, released, accepted ...
        :param expected: what the item's own fields must be.
        """
        try:
            heard, item = next(self._items)
        except (StopIteration, grpc.RpcError) as error:
            end = f"{error.code().name} {error.details()}" if isinstance(error, grpc.RpcError) else "the end"
            raise Unexpected(f"{self.name}: expected {field} {expected}, heard nothing: {end}") from error
        print(f"   {self.name:<11} {heard}: {_in_a_line(item)}", flush=True)
        wrong = {name: getattr(item, name) for name, value in expected.items() if getattr(item, name, None) != value}
        if heard != field or wrong:
            raise Unexpected(f"{self.name}: expected {field} {expected}, heard {heard} with {wrong}")
        return item

    def over(self) -> None:
        """Waits until the scheduler ends the stream, with nothing left to say. Raises Unexpected when there is more."""
        for heard, item in self._items:
            raise Unexpected(f"{self.name}: expected nothing more, heard {heard}: {_in_a_line(item)}")
        self._said.put(None)


def expect(what: str, fact: bool) -> None:
    """Raises Unexpected when it is not so."""
    if not fact:
        raise Unexpected(f"expected: {what}")


def resource(**quantities: int) -> si.Resource:
    """vcore in thousandths of a core, memory in bytes, anything else in its own unit."""
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


def leave(scheduler: si_pb2_grpc.SchedulerStub, rm_id: str, streams: Iterable[Stream]) -> None:
    """The RM is gone for good: said on a stream of its own; then every stream is over."""
    for stream in [Stream("leave", scheduler.UpdateNode, rm_id, ("muster-shutdown", "true")), *streams]:
        stream.over()


def run(program: Callable[[grpc.Channel], None]) -> None:
    """Runs an RM against the gateway of the command line; ends with 0 only if everything was as it should be."""
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9090"
    try:
        with _channel(address) as channel:
            program(channel)
    except Unexpected as error:
        sys.exit(f"not as expected: {error}")
    except grpc.RpcError as error:
        sys.exit(f"the call failed: {error.code().name} {error.details()}")
    print("all as expected")


def _channel(address: str) -> grpc.Channel:
    """Plain text; or TLS with a certificate and a token, as MUSTER_TLS_CA, _CERT, _KEY and MUSTER_TOKEN say."""
    if "MUSTER_TLS_CA" not in os.environ:
        return grpc.insecure_channel(address)

    def content(variable: str) -> bytes | None:
        return Path(os.environ[variable]).read_bytes() if variable in os.environ else None

    credentials = grpc.ssl_channel_credentials(
        content("MUSTER_TLS_CA"), content("MUSTER_TLS_KEY"), content("MUSTER_TLS_CERT")
    )
    if token := os.environ.get("MUSTER_TOKEN"):  # (the library sends tokens over TLS only)
        call = grpc.access_token_call_credentials(token)
        credentials = grpc.composite_channel_credentials(credentials, call)
    return grpc.secure_channel(address, credentials)


def _items(responses: Iterable[Message]) -> Iterator[tuple[str, Any]]:
    """Each item of each response with the name of its field. A response's numbers are left out."""
    for response in responses:
        for field, items in response.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                for item in items if field.is_repeated else [items]:
                    yield field.name, item


def _in_a_line(item: Message) -> str:
    """An item's texts and flags; no resources, no times, no tags."""
    shown = []
    for field, value in item.ListFields():
        if field.is_repeated:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            shown.append(_in_a_line(value))
        elif field.type == FieldDescriptor.TYPE_ENUM:
            shown.append(f"{field.name}={field.enum_type.values_by_number[value].name}")
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BOOL):
            shown.append(f"{field.name}={value}")
    return " ".join(part for part in shown if part)
