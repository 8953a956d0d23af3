"""A client of muster.v1.Health: the state of the whole Muster, by part (proto/muster/v1/health.proto)."""

from __future__ import annotations

import grpc.aio
from muster_proto.muster.v1 import health_pb2 as pb
from muster_proto.muster.v1.health_pb2 import Grade, PartHealth, SystemHealth

from muster_client.gateway_client import GatewayClient, refusal

__all__ = ["Grade", "HealthClient", "PartHealth", "SystemHealth"]

DEFAULT_TIMEOUT_S = 5.0


class HealthClient(GatewayClient):
    """Asks one gateway, or several in turn. Parameters as of :class:`GatewayClient`."""

    async def get(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> SystemHealth:
        """Returns the state of the whole. Raises AdminRefused, AdminFailed."""
        call = self._channel.unary_unary(
            "/muster.v1.Health/Get",
            request_serializer=pb.HealthRequest.SerializeToString,
            response_deserializer=pb.SystemHealth.FromString,
        )
        try:
            answer: SystemHealth = await call(pb.HealthRequest(), timeout=timeout_s, metadata=self._sent())
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error
        return answer
