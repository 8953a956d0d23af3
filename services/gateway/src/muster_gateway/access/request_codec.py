"""Finds the RM that a request names, before the method decodes the request."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from muster_proto.muster.v1 import admin_pb2, audit_pb2, events_pb2, metrics_pb2
from muster_proto.si.v1 import si_pb2
from muster_rest.methods import METHODS, Method

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


def rm_of(path: str, raw: bytes) -> str:
    """Returns the RM that a request names; "": it names none, or it does not decode.

    :param path: the method's name in a call.
    """
    known = _REQUESTS.get(path)
    if known is None:
        return ""
    request, fields = known
    try:
        found = request.FromString(raw)
    except DecodeError:
        return ""
    for field in fields:
        found = getattr(found, field)
    return str(found)
