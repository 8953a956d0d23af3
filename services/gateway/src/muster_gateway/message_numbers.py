"""The numbers that a client gives its messages, so that the scheduler accepts each one once."""

from __future__ import annotations

from muster_gateway.codec import SentMessage
from muster_gateway.errors import InvalidRequest, quote

# With these two a client numbers its messages: one life of the client, and the number of the stream's first message.
# The scheduler then takes a message once, however often it is sent.
CLIENT_METADATA = "muster-client"
FIRST_MESSAGE_METADATA = "muster-first-message"
_CLIENT_MAX = 64
# Digits of 2^64.
MAX_DIGITS = 20


class MessageNumbering:
    """The numbers of a stream's messages, for the records that they become.

    :param client: one life of the client.
    :param first: number of the stream's first message.
    """

    def __init__(self, client: str, first: int) -> None:
        self._client, self._first = client, first
        self._number, self._before, self._left = first - 1, first - 1, 0

    def begin(self, records: int) -> None:
        """The next message was read, and becomes so many records (0: all of it is answered here)."""
        self._number += 1
        self._left = records

    def next(self) -> SentMessage:
        """Returns the number of the message's next record."""
        self._left -= 1
        sent = SentMessage(self._client, self._number, self._first, self._before, self._left > 0)
        if not self._left:
            self._before = self._number
        return sent


def numbers_of(metadata: dict[str, str]) -> MessageNumbering | None:
    """Returns the numbers of a stream whose client numbers its messages. Raises InvalidRequest."""
    client, first = metadata.get(CLIENT_METADATA), metadata.get(FIRST_MESSAGE_METADATA)
    if client is None and first is None:
        return None
    if not client or len(client) > _CLIENT_MAX or not client.isprintable():
        problem = f"{CLIENT_METADATA}: {quote(client or '')}, expected 1 to {_CLIENT_MAX} printable characters"
        raise InvalidRequest(f"{problem} that name one life of the client")
    if first is None or not (first.isascii() and first.isdigit() and len(first) < MAX_DIGITS and int(first) > 0):
        problem = f"{FIRST_MESSAGE_METADATA}: {quote(first or '')}"
        raise InvalidRequest(f"{problem}, expected the number of the stream's first message (1 or more)")
    return MessageNumbering(client, int(first))
