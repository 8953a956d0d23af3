"""A gateway that serves muster.v1.Admin only, with the test's answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from muster_proto.muster.v1 import admin_pb2
from muster_proto.muster.v1.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from muster_proto.si.v1 import si_pb2 as si
from unit.client.serving import serving


class AdminGateway(AdminServicer):
    """A server on a free port.

    :ivar asked: the requests, and their metadata.
    :ivar answer: the response, or a status and its details, with which the call ends.
    :ivar called: the other calls: method and request.
    :ivar answers: by method, the responses of the other calls (of DumpState: several), or a status as above.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[si.UpdateConfigurationRequest, dict[str, str]]] = []
        self.answer: admin_pb2.UpdateConfigurationResponse | tuple[grpc.StatusCode, str] = (
            admin_pb2.UpdateConfigurationResponse(accepted=True)
        )
        self.address = ""
        self.called: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {}

    def UpdateConfiguration(self, request: Any, context: Any) -> Any:
        self.asked.append((request, dict(context.invocation_metadata())))
        if isinstance(self.answer, tuple):
            context.abort(*self.answer)
        return self.answer

    def ValidateConfiguration(self, request: Any, context: Any) -> Any:
        return self._answered("ValidateConfiguration", request, context)

    def ListResourceManagers(self, request: Any, context: Any) -> Any:
        return self._answered("ListResourceManagers", request, context)

    def PauseResourceManager(self, request: Any, context: Any) -> Any:
        return self._answered("PauseResourceManager", request, context)

    def ResumeResourceManager(self, request: Any, context: Any) -> Any:
        return self._answered("ResumeResourceManager", request, context)

    def ForgetResourceManager(self, request: Any, context: Any) -> Any:
        return self._answered("ForgetResourceManager", request, context)

    def DrainNode(self, request: Any, context: Any) -> Any:
        return self._answered("DrainNode", request, context)

    def EndApplication(self, request: Any, context: Any) -> Any:
        return self._answered("EndApplication", request, context)

    def Explain(self, request: Any, context: Any) -> Any:
        return self._answered("Explain", request, context)

    def DumpState(self, request: Any, context: Any) -> Iterator[Any]:
        self.called.append(("DumpState", request))
        for piece in self.answers.get("DumpState", ()):
            if isinstance(piece, tuple):
                context.abort(*piece)
            yield piece

    def _answered(self, method: str, request: Any, context: Any) -> Any:
        self.called.append((method, request))
        answer = self.answers[method]
        if isinstance(answer, tuple):
            context.abort(*answer)
        return answer


@contextmanager
def running() -> Iterator[AdminGateway]:
    """Served by threads: the caller may run an event loop of its own."""
    gateway = AdminGateway()
    with serving(gateway, add_AdminServicer_to_server) as gateway.address:
        yield gateway
