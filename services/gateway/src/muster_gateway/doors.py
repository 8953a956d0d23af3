"""Where a gateway listens, apart from what it answers.

The gateway assembles its answers: gRPC handlers by path behind their interceptors, and one HTTP application. A
:class:`Doors` opens them to clients. :class:`SocketDoors` listens on the addresses of the settings. Another object may
take calls in another way, such as within one process.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Protocol

import grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from muster_runtime.http_server import HttpServer
from starlette.types import ASGIApp

from muster_gateway.authentication import Authenticator
from muster_gateway.connection_guard import ConnectionGuard, Ended
from muster_gateway.connections import Accounts
from muster_gateway.server_options import bounds_of, server_options
from muster_gateway.settings import GatewaySettings


class GrpcOffer(NamedTuple):
    """What a gateway answers over gRPC.

    :param interceptors: the outer one first.
    :param handlers: each finds a method by its path.
    :param services: names of the services, for reflection.
    :param health: answers grpc.health.v1.
    """

    interceptors: Sequence[grpc.aio.ServerInterceptor]
    handlers: Sequence[grpc.GenericRpcHandler]
    services: Sequence[str]
    health: Any


class HttpServing(Protocol):
    """A server of the HTTP application."""

    @property
    def port(self) -> int:
        """The port that it listens on; 0: none."""
        ...

    async def serve(self) -> None:
        """Serves until :meth:`stop`."""
        ...

    async def wait_started(self) -> None:
        """Returns when requests are answered. Raises OSError."""
        ...

    async def stop(self) -> None:
        """Lets open requests end in bounded time, then cuts them."""
        ...


class Doors(Protocol):
    """Opens a gateway to its clients. Each object serves one gateway, once."""

    async def open_grpc(self, offer: GrpcOffer) -> tuple[int, int]:
        """Begins to serve calls. Returns the ports of ``grpc_address`` and ``grpc_mtls_address``; 0: none.

        Raises OSError for an address that cannot be listened on.
        """
        ...

    def open_http(self, app: ASGIApp) -> HttpServing | None:
        """Returns the server of the HTTP application; None: nobody can reach it. Raises OSError, ValueError."""
        ...

    async def stop_grpc(self, grace_s: float | None) -> None:
        """Takes no more calls. Open ones may end within ``grace_s``; None: they end at once."""
        ...

    async def close(self) -> None:
        """Frees the rest. The last call."""
        ...


class SocketDoors:
    """Listens on the addresses of the settings. See :class:`Doors`.

    :param accounts: of the connections.
    :param connection_ended: is told of connections that the gateway ends.
    :param listener: a bound socket for HTTP, in place of one at ``settings.http_address``.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        doorman: Authenticator,
        accounts: Accounts,
        connection_ended: Ended,
        listener: socket.socket | None = None,
    ) -> None:
        self._settings, self._doorman, self._accounts = settings, doorman, accounts
        self._connection_ended, self._listener = connection_ended, listener
        self._server: grpc.aio.Server | None = None
        self._http: HttpServer | None = None
        self._stack = AsyncExitStack()

    async def open_grpc(self, offer: GrpcOffer) -> tuple[int, int]:
        settings = self._settings
        server = self._server = grpc.aio.server(
            interceptors=tuple(offer.interceptors), options=server_options(settings)
        )
        server.add_generic_rpc_handlers(tuple(offer.handlers))
        add_HealthServicer_to_server(offer.health, server)
        reflection.enable_server_reflection((*offer.services, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        tls = settings.tls
        required = tls.client_ca is not None and tls.client_certificates == "required"
        port, mtls_port = self._listen(server, "grpc_address", settings.grpc_address, certificates=required), 0
        if settings.grpc_mtls_address:
            field, address = "grpc_mtls_address", settings.grpc_mtls_address
            mtls_port = self._listen(server, field, address, certificates=True)
        await server.start()
        connections = ConnectionGuard(self._accounts, bounds_of(settings), self._connection_ended)
        connections.start({port, mtls_port} - {0})
        self._stack.push_async_callback(connections.stop)
        return port, mtls_port

    def open_http(self, app: ASGIApp) -> HttpServer | None:
        settings = self._settings
        if not settings.http_address:
            return None
        door = self._doorman.tls if settings.tls.http else None
        tls = door.context() if door is not None else None
        address = self._listener if self._listener is not None else settings.http_address
        self._http = HttpServer(app, address, settings.stop_grace_s, tls=tls)
        return self._http

    async def stop_grpc(self, grace_s: float | None) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)

    async def close(self) -> None:
        if self._http is None and self._listener is not None:
            self._listener.close()
        await self._stack.aclose()

    def _listen(self, server: grpc.aio.Server, field: str, address: str, *, certificates: bool) -> int:
        """Returns the port that the server listens on.

        :param certificates: clients must have one.
        """
        tls = self._doorman.tls
        try:
            if tls is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, tls.credentials(client_certificates=certificates))
        except RuntimeError as error:
            raise OSError(f"{field}: {address!r} cannot be listened on") from error
