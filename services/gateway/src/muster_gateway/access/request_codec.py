"""Finds the RM that a request names, before the method decodes the request."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from muster_proto.muster.v1 import admin_pb2, audit_pb2, events_pb2, metrics_pb2
from muster_proto.si.v1 import si_pb2
from muster_rest.grpc_methods import METHODS, Method

from muster_gateway.bounded_messages import SIZES, Steps, StepSizes
from muster_gateway.wire_fields import FieldScanner, Malformed

_FILES: tuple[Any, ...] = (si_pb2, admin_pb2, audit_pb2, events_pb2, metrics_pb2)


def _request_of(method: Method) -> Any:
    """The type of a method's request."""
    for file in _FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            if service.full_name == method.service:
                name = service.methods_by_name[method.name].input_type.name
                return getattr(file, name, None) or getattr(si_pb2, name)
    raise AssertionError(f"{method.path} has no descriptor")


_REQUESTS = {method.path: (_request_of(method), method.rm.split(".")) for method in METHODS if method.rm}


# A request that brings a configuration; the others have names and filters only.
_LARGE = frozenset(
    {
        "/si.v1.Scheduler/RegisterResourceManager",
        "/muster.v1.Admin/UpdateConfiguration",
        "/muster.v1.Admin/ValidateConfiguration",
    }
)
# A hundred names of 1,024 characters, as the filter of a watch may have, take less.
REQUEST_BYTES_MAX = 512 * 1024


def may_be_large(path: str) -> bool:
    """Tells whether a method's request may be larger than :data:`REQUEST_BYTES_MAX`."""
    return path in _LARGE


def rm_steps(path: str, raw: bytes, sizes: StepSizes = SIZES) -> Steps[str]:
    """Returns the RM that a request names; "": it names none, or it does not decode. A small request is one step.

    :param path: the method's name in a call.
    """
    message_fields = _REQUESTS.get(path)
    if message_fields is None:
        return ""
    request, fields = message_fields
    try:
        if len(raw) > sizes.whole_bytes:
            return (yield from _last_text(raw, 0, len(raw), _tags(request.DESCRIPTOR, fields), sizes)) or ""
        value = request.FromString(raw)
    except (DecodeError, Malformed, UnicodeDecodeError):
        return ""
    for field in fields:
        value = getattr(value, field)
    return str(value)


def _tags(descriptor: Any, fields: list[str]) -> tuple[int, ...]:
    """Returns the tags of the fields on a path."""
    tags = []
    for name in fields:
        field = descriptor.fields_by_name[name]
        tags.append(field.number << 3 | 2)
        descriptor = field.message_type
    return tuple(tags)


def _last_text(raw: bytes, begin: int, end: int, tags: tuple[int, ...], sizes: StepSizes) -> Steps[str | None]:
    """Returns the last text at a path; None: there is none."""
    last: str | None = None
    scanner = FieldScanner(raw, begin, end)
    while not scanner.is_done():
        for tag, _, body, end_field in scanner.scan(sizes.fields):
            if tag != tags[0]:
                continue
            if len(tags) == 1:
                last = raw[body:end_field].decode()
            else:
                inner = yield from _last_text(raw, body, end_field, tags[1:], sizes)
                last = inner if inner is not None else last
        if not scanner.is_done():
            yield
    return last
