"""The base of the clients of a gateway's services other than SI: one channel, its metadata, the errors."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

import grpc
import grpc.aio
from muster_si.positions import AFTER_METADATA, POSITION_METADATA, newest

from muster_client.access import PLAIN, Access
from muster_client.errors import AdminFailed, AdminRefused
from muster_client.renewing_channel import Channel, RenewedChannel
from muster_client.resumable_stream import Metadata

# As large as a gateway's largest answer: ten thousand nodes with long names, an application with very many asks.
_MESSAGE_BYTES_MAX = 64 << 20
_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS = 30_000, 10_000
# The request is valid; the client may send it again.
_TRY_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
    }
)


class GatewayClient:
    """Asks one gateway, or several in turn. A context manager that closes its connection.

    :param address: a gRPC target, as of :class:`RmClient`.
    :param credentials: of the channel; None: plain text.
    :param metadata: sent with every call.
    :param access: TLS and token; ``credentials`` come first.
    :param channel: makes the calls, in place of one to ``address``. The client closes it.
    :ivar after: a position that every later read must include, at first that of ``access``; "": none. A read waits for
        it, at most until its time-out.
    :ivar position: of the newest change that an answer told of; "": none yet. Another client, or REST, that is given it
        shows that change.
    """

    def __init__(
        self,
        address: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Metadata = (),
        access: Access = PLAIN,
        channel: Channel | None = None,
    ) -> None:
        self._metadata, self._access = metadata, access
        self.after, self.position = access.after, ""
        # The gateway's limits count.
        options: list[tuple[str, int | str]] = [
            *access.options(),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
            # Otherwise a watch would not notice that the other side has vanished.
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ]
        self._channel: Channel = (
            channel if channel is not None else RenewedChannel(address, options, access, credentials)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()

    def _sent(self) -> grpc.aio.Metadata:
        after = ((AFTER_METADATA, self.after),) if self.after else ()
        return grpc.aio.Metadata(*self._metadata, *self._access.metadata(), *after)

    def _note_position(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
        """Notes the position in the trailing metadata of an answer."""
        self.position = newest(self.position, position_in(metadata))


def position_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns the position in trailing metadata; "": there is none."""
    return next((str(value) for name, value in metadata or () if name == POSITION_METADATA), "")


def refusal(error: grpc.aio.AioRpcError) -> AdminFailed | AdminRefused:
    """Returns the error for a failed call: AdminFailed if the call may be repeated, else AdminRefused."""
    code, details = error.code(), error.details() or ""
    return (AdminFailed if code in _TRY_AGAIN else AdminRefused)(code, details)
