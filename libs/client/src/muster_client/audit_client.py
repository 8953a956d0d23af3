"""A client of muster.v1.Audit (proto/muster/v1/audit.proto), and the entries in the form of programs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from muster_proto.muster.v1 import audit_pb2 as pb

from muster_client.gateway_client import GatewayClient, refusal

RESULTS = ("accepted", "refused", "failed")


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Selects entries; an empty field fits all.

    :param result: one of RESULTS; "": all.
    :param since_ns: recorded then or later, ns since the epoch.
    :param until_ns: recorded before; 0: no end.
    """

    rm_id: str = ""
    identity: str = ""
    action: str = ""
    result: str = ""
    since_ns: int = 0
    until_ns: int = 0

    def fits(self, entry: dict[str, Any]) -> bool:
        """Tells whether an entry is wanted."""
        return (
            self.rm_id in ("", entry["rm_id"])
            and self.identity in ("", entry["identity"])
            and self.action in ("", entry["action"])
            and self.result in ("", entry["result"])
            and entry["recorded_ns"] >= self.since_ns
            and (not self.until_ns or entry["recorded_ns"] < self.until_ns)
        )


class AuditClient(GatewayClient):
    """Asks one gateway. Parameters as of :class:`GatewayClient`."""

    async def read(self, wanted: AuditQuery, *, follow: bool = False) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yields entries, the oldest first. Raises AdminRefused, AdminFailed."""
        call = self._channel.unary_stream(
            "/muster.v1.Audit/Read",
            request_serializer=pb.ReadAuditRequest.SerializeToString,
            response_deserializer=pb.AuditEntries.FromString,
        )
        request = pb.ReadAuditRequest(
            rm_id=wanted.rm_id,
            identity=wanted.identity,
            action=wanted.action,
            since_ns=wanted.since_ns,
            until_ns=wanted.until_ns,
            follow=follow,
        )
        if wanted.result:
            request.result = pb.AuditEntry.Result.Value(wanted.result.upper())
        try:
            async for batch in call(request, metadata=self._sent()):
                yield [_as_json(entry) for entry in batch.entries]
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error


def entry_of(value: bytes | None) -> dict[str, Any] | None:
    """Returns a record of si.audit.v1 as JSON; None: it is none."""
    try:
        return _as_json(pb.AuditEntry.FromString(value or b""))
    except DecodeError:
        return None


def _as_json(entry: pb.AuditEntry) -> dict[str, Any]:
    """All fields under their names of the interface, the result as a word."""
    document: dict[str, Any] = {field.name: getattr(entry, field.name) for field in entry.DESCRIPTOR.fields}
    number = entry.result
    is_defined = number in pb.AuditEntry.Result.values()
    document["result"] = pb.AuditEntry.Result.Name(number).lower() if is_defined else str(number)
    document["objects"] = dict(sorted(entry.objects.items()))
    return document
