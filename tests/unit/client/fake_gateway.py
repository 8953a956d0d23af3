"""A gateway in the test's own process, with faults on demand."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from muster_proto.si.v1 import si_pb2 as si

Answer = Callable[[str, Any], list[Any]]

_KINDS = {
    "UpdateAllocation": ("allocation", si.AllocationRequest, si.AllocationResponse),
    "UpdateApplication": ("application", si.ApplicationRequest, si.ApplicationResponse),
    "UpdateNode": ("node", si.NodeRequest, si.NodeResponse),
}


def accept_everything(kind: str, request: Any) -> list[Any]:
    """Nodes and applications are accepted, every ask is allocated on node n1, releases are confirmed."""
    if kind == "node":
        return [si.NodeResponse(accepted=[si.AcceptedNode(nodeID=item.nodeID) for item in request.nodes])]
    if kind == "application":
        return [
            si.ApplicationResponse(
                accepted=[si.AcceptedApplication(applicationID=item.applicationID) for item in request.new]
            )
        ]
    new = [
        si.Allocation(allocationKey=item.allocationKey, applicationID=item.applicationID, nodeID="n1")
        for item in [*request.asks, *request.allocations]
    ]
    return [si.AllocationResponse(new=new, released=request.releases.allocationsToRelease)]


class FakeGateway:
    """Takes messages, answers them through ``answer``, numbers the responses, and resumes.

    :ivar taken: (kind, request) in the order of taking.
    :ivar metadata: of every opened stream, by kind.
    :ivar lose_before: kind → how many messages are still taken before one is lost together with its stream.
    :ivar lose_after: kind → the same, but the message at which it happens is taken first; its answer is not delivered.
    """

    def __init__(self, answer: Answer = accept_everything) -> None:
        self.answer = answer
        self.taken: list[tuple[str, Any]] = []
        self.registrations: list[si.RegisterResourceManagerRequest] = []
        self.metadata: dict[str, list[dict[str, str]]] = defaultdict(list)
        self.known = False
        self.refuse_registration: tuple[grpc.StatusCode, str] | None = None
        self.refuse_streams: tuple[grpc.StatusCode, str] | None = None
        self.lose_before: dict[str, int] = {}
        self.lose_after: dict[str, int] = {}
        self.warnings: list[str] = []  # of a registration
        self.greets = True  # sends its headers at once; else with the first response
        self.redeliver = 0  # number of responses before the resume position that are sent again
        self.paused = asyncio.Event()
        self.paused.set()
        self.address = ""
        self.more_handlers: list[grpc.GenericRpcHandler] = []
        self.ended_by_client: list[str] = []
        self._responses: list[tuple[str, Any]] = []
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handlers: dict[str, grpc.RpcMethodHandler] = {
            "RegisterResourceManager": grpc.unary_unary_rpc_method_handler(
                self._register,
                si.RegisterResourceManagerRequest.FromString,
                si.RegisterResourceManagerResponse.SerializeToString,
            )
        }
        for method, (kind, request, response) in _KINDS.items():
            handlers[method] = grpc.stream_stream_rpc_method_handler(
                self._handler(kind), request.FromString, response.SerializeToString
            )
        scheduler = grpc.method_handlers_generic_handler("si.v1.Scheduler", handlers)
        self._server.add_generic_rpc_handlers([scheduler, *self.more_handlers])
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def restart(self) -> None:
        """Restart on the same port, with all taken requests and responses."""
        await self.start(self.address)

    def items(self, kind: str) -> list[str]:
        """Keys of the items taken, in order, with repetitions."""
        keys: list[str] = []
        for taken_kind, request in self.taken:
            if taken_kind != kind:
                continue
            if kind == "node":
                keys += [item.nodeID for item in request.nodes]
            elif kind == "application":
                keys += [item.applicationID for item in request.new]
            else:
                keys += [item.allocationKey for item in [*request.asks, *request.allocations]]
        return keys

    async def emit(self, kind: str, response: Any, *, numbered: bool = True) -> None:
        async with self._changed:
            self._add(kind, response, numbered=numbered)
            self._changed.notify_all()

    def skip_number(self) -> None:
        """Use up a number that no stream gets: a registration's, or a lost one."""
        self._responses.append(("", None))

    def _add(self, kind: str, response: Any, *, numbered: bool = True) -> None:
        if numbered:
            response.responseSequence = len(self._responses) + 1
        self._responses.append((kind, response))

    async def _register(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        if self.refuse_registration:
            await context.abort(*self.refuse_registration)
        self.registrations.append(request)
        self.known = True
        self.skip_number()
        context.set_trailing_metadata([("muster-warning-bin", text.encode()) for text in self.warnings])
        return si.RegisterResourceManagerResponse()

    def _handler(self, kind: str) -> Callable[[AsyncIterator[Any], grpc.aio.ServicerContext], Any]:
        async def handle(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
            metadata = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
            self.metadata[kind].append(metadata)
            if self.refuse_streams:
                await context.abort(*self.refuse_streams)
            if not self.known:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "rmID r1 is not registered")
            if self.greets:
                await context.send_initial_metadata(())
            position = int(metadata.get("muster-resume-after", len(self._responses)))
            pump = asyncio.create_task(self._pump(kind, max(0, position - self.redeliver), context))
            try:
                async for request in requests:
                    await self.paused.wait()
                    if self._due(self.lose_before, kind):
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "lost before taking")
                    self.taken.append((kind, request))
                    lost = self._due(self.lose_after, kind)
                    if lost:
                        pump.cancel()
                    async with self._changed:
                        for response in self.answer(kind, request):
                            self._add(kind, response)
                        self._changed.notify_all()
                    if lost:
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "lost after taking")
                self.ended_by_client.append(kind)
                await asyncio.sleep(60)  # responses may follow; the client ends the call
            finally:
                pump.cancel()

        return handle

    async def _pump(self, kind: str, position: int, context: grpc.aio.ServicerContext) -> None:
        while True:
            async with self._changed:
                while position >= len(self._responses):
                    await self._changed.wait()
            response_kind, response = self._responses[position]
            position += 1
            if response_kind == kind:
                await context.write(response)

    def _due(self, faults: dict[str, int], kind: str) -> bool:
        if kind not in faults:
            return False
        if faults[kind] > 0:
            faults[kind] -= 1
            return False
        del faults[kind]
        return True
