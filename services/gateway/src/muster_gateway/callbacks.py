"""muster.v1.Callbacks on grpc.aio: the stream of the scheduler's questions and messages to an RM (docs/callbacks.md).

Bytes in and bytes out, as on SI's streams. An open callback stream counts as one of the RM's streams: it alone keeps
the RM RUNNING. An RM that answers questions is alive, and its answers would be useless if Muster scheduled nothing for
it.
"""

from __future__ import annotations

from typing import Any

import grpc

from muster_gateway.callback_stream import CallbackStream, Update
from muster_gateway.servicer import StreamCalls
from muster_gateway.stream import StreamDependencies

SERVICE = "muster.v1.Callbacks"


class CallbackServicer:
    """The one method of muster.v1.Callbacks.

    :param update: puts a configuration to the scheduler, as Admin does.
    """

    def __init__(self, parts: StreamDependencies, calls: StreamCalls, update: Update) -> None:
        self._dependencies, self._calls, self._update = parts, calls, update

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns a generic handler without serialisers."""
        methods: dict[str, Any] = {"Connect": grpc.stream_stream_rpc_method_handler(self._connect)}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _connect(self, _requests: Any, context: Any) -> None:
        await self._calls.serve(CallbackStream(self._dependencies, context, self._update), context)
