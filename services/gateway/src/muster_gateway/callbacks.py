"""muster.v1.Callbacks on grpc.aio: the stream on which the scheduler asks and tells an RM (docs/callbacks.md).

Bytes in and bytes out, as the streams of SI. An open callback stream counts as one of the RM's streams: it alone keeps
the RM RUNNING. An RM that still answers questions is there, and its answers would be of no use if it were paused.
"""

from __future__ import annotations

from typing import Any

import grpc

from muster_gateway.callback_stream import CallbackStream, Update
from muster_gateway.servicer import StreamCalls
from muster_gateway.stream import Parts

SERVICE = "muster.v1.Callbacks"


class CallbackServicer:
    """The one method of muster.v1.Callbacks.

    :param update: puts a configuration to the scheduler, as Admin does.
    """

    def __init__(self, parts: Parts, calls: StreamCalls, update: Update) -> None:
        self._parts, self._calls, self._update = parts, calls, update

    def handlers(self) -> grpc.GenericRpcHandler:
        """A generic handler without serialisers."""
        methods: dict[str, Any] = {"Connect": grpc.stream_stream_rpc_method_handler(self._connect)}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _connect(self, _requests: Any, context: Any) -> None:
        await self._calls.serve(CallbackStream(self._parts, context, self._update), context)
