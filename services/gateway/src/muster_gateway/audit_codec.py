"""Encodes the gateway's audit entries, and reads the entries of si.audit.v1 for muster.v1.Audit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.message import DecodeError
from muster_bus.log import Record
from muster_proto.muster.v1 import audit_pb2 as pb
from muster_rest.shapes.audit import AuditEntryDao

from muster_gateway.errors import InvalidRequest

ReadAuditRequest = pb.ReadAuditRequest


class AuditResult(IntEnum):
    """The numbers are those of ``muster.v1.AuditEntry.Result``."""

    ACCEPTED = 1
    REFUSED = 2
    FAILED = 3


# The action of an entry about entries that are lost.
LOST = "lost"


@dataclass(frozen=True, slots=True)
class AuditAttempt:
    """A call that the gateway answers itself; equal ones are counted together. No text has secrets."""

    identity: str
    proof: str
    peer: str
    door: str
    method: str
    action: str
    rm_id: str
    result: AuditResult
    reason: str = ""


def encode_entry(
    attempt: AuditAttempt, entry_id: str, gateway_id: str, recorded_ns: int, count: int = 1, first_ns: int = 0
) -> bytes:
    """Encodes an AuditEntry."""
    return pb.AuditEntry(
        id=entry_id,
        recorded_ns=recorded_ns,
        identity=attempt.identity,
        proof=attempt.proof,
        peer=attempt.peer,
        door=attempt.door,
        method=attempt.method,
        action=attempt.action,
        rm_id=attempt.rm_id,
        result=attempt.result,  # type: ignore[arg-type]
        reason=attempt.reason,
        gateway_id=gateway_id,
        request_offset=-1,
        count=count,
        first_ns=first_ns,
    ).SerializeToString(deterministic=True)


def lost_entry(entry_id: str, recorded_ns: int, reason: str) -> pb.AuditEntry:
    """Returns an entry in the place of entries that cannot be read."""
    return pb.AuditEntry(
        id=entry_id,
        recorded_ns=recorded_ns,
        method="internal",
        action=LOST,
        result=pb.AuditEntry.FAILED,
        reason=reason,
        request_offset=-1,
        count=1,
    )


def encode_entries(entries: Iterable[pb.AuditEntry]) -> bytes:
    """Encodes an AuditEntries."""
    return pb.AuditEntries(entries=entries).SerializeToString()


def decode_entry(record: Record) -> pb.AuditEntry | None:
    """Decodes an entry; None: the record is none."""
    try:
        return pb.AuditEntry.FromString(record.value or b"")
    except DecodeError:
        return None


def decode_read(raw: bytes) -> pb.ReadAuditRequest:
    """Decodes a ReadAuditRequest. Raises InvalidRequest."""
    try:
        request = pb.ReadAuditRequest.FromString(raw)
    except DecodeError:
        raise InvalidRequest("not a muster.v1.ReadAuditRequest") from None
    for name in ("since_ns", "until_ns"):
        if (time_ns := getattr(request, name)) < 0:
            raise InvalidRequest(f"{name} {time_ns}: expected 0 or more")
    if request.result not in pb.AuditEntry.Result.values():
        raise InvalidRequest(f"result {request.result}: expected one of AuditEntry.Result")
    return request


def fits(entry: pb.AuditEntry, request: pb.ReadAuditRequest) -> bool:
    """Tells whether an entry is wanted."""
    if entry.action == LOST:  # any of those that are lost might be wanted
        return True
    return (
        (not request.rm_id or entry.rm_id == request.rm_id)
        and (not request.identity or entry.identity == request.identity)
        and (not request.action or entry.action == request.action)
        and (not request.result or entry.result == request.result)
        and entry.recorded_ns >= request.since_ns
        and (not request.until_ns or entry.recorded_ns < request.until_ns)
    )


def make_read(
    rm_id: str, identity: str, action: str, result: AuditResult | None, since_ns: int, until_ns: int
) -> ReadAuditRequest:
    """Returns a request with these filters; "", None and 0 fit all entries."""
    return pb.ReadAuditRequest(
        rm_id=rm_id,
        identity=identity,
        action=action,
        result=int(result or 0),  # type: ignore[arg-type]
        since_ns=since_ns,
        until_ns=until_ns,
    )


def entry_dao(entry: pb.AuditEntry) -> AuditEntryDao:
    """Returns an entry in the form of REST."""
    is_known = entry.result in pb.AuditEntry.Result.values()
    return AuditEntryDao(
        id=entry.id,
        time=entry.recorded_ns,
        identity=entry.identity,
        proof=entry.proof,
        peer=entry.peer,
        door=entry.door,
        method=entry.method,
        action=entry.action,
        rm_id=entry.rm_id,
        objects=dict(sorted(entry.objects.items())),
        result=pb.AuditEntry.Result.Name(entry.result).lower() if is_known else str(entry.result),
        reason=entry.reason,
        gateway_id=entry.gateway_id,
        request_id=entry.request_id,
        request_partition=entry.request_partition,
        request_offset=entry.request_offset,
        count=entry.count,
        first_time=entry.first_ns,
    )
