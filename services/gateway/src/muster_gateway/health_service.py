"""muster.v1.Health on grpc.aio: the state of the whole (proto/muster/v1/health.proto)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from muster_rest.shapes.health import SystemHealthDao
from muster_rest.system_health import without_parts
from muster_runtime.caller import current
from muster_runtime.identity import Right

from muster_gateway.health_codec import encode

SERVICE = "muster.v1.Health"


class HealthServicer:
    """The methods of muster.v1.Health.

    :param state: returns the state of the whole; bounded in time.
    """

    def __init__(self, state: Callable[[], Awaitable[SystemHealthDao]]) -> None:
        self._state = state

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns generic handlers without serialisers."""
        methods: dict[str, Any] = {"Get": grpc.unary_unary_rpc_method_handler(self._get)}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _get(self, _raw: bytes, _context: Any) -> bytes:
        state = await self._state()
        return encode(state if current().may(Right.READ) else without_parts(state))
