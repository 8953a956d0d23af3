"""A channel whose certificates may be renewed: the first call after their files changed opens a new connection."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio
import structlog

from muster_client.access import Access, AccessWrong

log = structlog.get_logger(__name__)

Options = Sequence[tuple[str, int | str]]


class Channel(Protocol):
    """The used part of ``grpc.aio.Channel``."""

    def unary_unary(self, method: str, **coding: Any) -> Callable[..., Any]: ...

    def unary_stream(self, method: str, **coding: Any) -> Callable[..., Any]: ...

    def stream_stream(self, method: str, **coding: Any) -> Callable[..., Any]: ...

    async def close(self) -> None:
        """Ends all calls and closes all connections."""
        ...


class RenewedChannel:
    """Makes calls as a ``grpc.aio.Channel`` does, each with the certificates as they are when the call begins.

    A connection with older certificates stays until its last call ends. So a renewal ends no stream. While the files
    cannot be used, such as between the writing of two of them, calls use the last ones that could.

    :param address: a gRPC target.
    :param options: of the channel.
    :param credentials: used as they are, for ever; None: those of ``access``.

    The constructor raises AccessWrong for files that cannot be used.
    """

    def __init__(
        self, address: str, options: Options, access: Access, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self._address, self._options, self._access = address, options, access
        self._fixed = credentials is not None or not access.uses_tls
        self._stamp = access.stamp()
        self._newest = self._open(credentials or access.credentials())
        self._calls: Counter[grpc.aio.Channel] = Counter()
        self._closing: set[asyncio.Task[None]] = set()

    def unary_unary(self, method: str, **coding: Any) -> Callable[..., Any]:
        """As of grpc.aio.Channel."""
        return partial(self._call, "unary_unary", method, coding)

    def unary_stream(self, method: str, **coding: Any) -> Callable[..., Any]:
        """As of grpc.aio.Channel."""
        return partial(self._call, "unary_stream", method, coding)

    def stream_stream(self, method: str, **coding: Any) -> Callable[..., Any]:
        """As of grpc.aio.Channel."""
        return partial(self._call, "stream_stream", method, coding)

    async def close(self) -> None:
        """Ends all calls and closes all connections."""
        for channel in dict.fromkeys((self._newest, *self._calls)):
            await channel.close()
        await asyncio.gather(*self._closing)

    def _call(self, kind: str, method: str, coding: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._renew()
        channel = self._newest
        call = getattr(channel, kind)(method, **coding)(*args, **kwargs)
        if not self._fixed:
            self._calls[channel] += 1
            call.add_done_callback(lambda _: self._ended(channel))
        return call

    def _ended(self, channel: grpc.aio.Channel) -> None:
        self._calls[channel] -= 1
        if not self._calls[channel]:
            del self._calls[channel]
            if channel is not self._newest:
                self._close_soon(channel)

    def _renew(self) -> None:
        if self._fixed or (stamp := self._access.stamp()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._access.context()  # checks more than gRPC does: that the certificate and its key fit each other
            credentials = self._access.credentials()
        except AccessWrong as error:
            log.warning("certificates not read, the last ones stay in use", error=str(error))
            return
        before, self._newest = self._newest, self._open(credentials)
        log.info("certificates read again", address=self._address)
        if not self._calls[before]:
            self._close_soon(before)

    def _close_soon(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.ensure_future(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _open(self, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        if credentials is None:
            return grpc.aio.insecure_channel(self._address, self._options)
        return grpc.aio.secure_channel(self._address, credentials, self._options)
