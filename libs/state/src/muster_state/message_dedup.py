"""The messages of clients that the scheduler has taken, so that it takes none of them twice.

A client sends a message again if its connection is lost before it knows that the message is on the log. So the message
may be on the log twice, the second time long after the first one and after its consequences: the ask may have been
allocated, and its allocation released. A client that numbers its messages (the gateway's metadata ``muster-client``)
has each of them taken once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

# A second client takes over from the first one, and may lose to it again. More of them are not one RM.
_CLIENTS_MAX = 4
# Numbers are missing only where the log refused a message, and until the client sends that one again.
_BEYOND_MAX = 1_000


class MessageNumber(Protocol):
    """A message's place in its client's order (proto SentMessage)."""

    @property
    def client(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def before(self) -> int: ...
    @property
    def more(self) -> bool: ...


class AcceptedNumbers(NamedTuple):
    """What is taken of one client on one kind of stream (proto SentObject)."""

    stream: str
    client: str
    up_to: int
    beyond: Sequence[int]


@dataclass(slots=True)
class _AcceptedSet:
    """Of one client: all numbers up to ``up_to``, and those of ``beyond``."""

    up_to: int
    beyond: list[int] = field(default_factory=list)

    def settle(self, number: int) -> None:
        """All numbers up to this one are taken, or will not come."""
        self.up_to = max(self.up_to, number)
        self._absorb()

    def has(self, number: int) -> bool:
        return number <= self.up_to or number in self.beyond

    def add(self, number: int, before: int) -> None:
        if before <= self.up_to:
            self.up_to = number
        else:
            self.beyond.append(number)
            if len(self.beyond) > _BEYOND_MAX:
                self.up_to = min(self.beyond)
        self._absorb()

    def _absorb(self) -> None:
        self.beyond = sorted(number for number in self.beyond if number > self.up_to)
        while self.beyond and self.beyond[0] == self.up_to + 1:
            self.up_to = self.beyond.pop(0)


class MessageDedup:
    """The messages taken of one RM, by kind of stream and client."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], _AcceptedSet] = {}

    def accept(self, stream: str, sent: MessageNumber) -> bool:
        """Tells whether a message is taken now for the first time, and remembers it."""
        taken = self._of(stream, sent.client, sent.first - 1)
        taken.settle(sent.first - 1)
        if taken.has(sent.number):
            return False
        if not sent.more:
            taken.add(sent.number, sent.before)
        return True

    def _of(self, stream: str, client: str, up_to: int) -> _AcceptedSet:
        accepted = self._taken.pop((stream, client), None) or _AcceptedSet(up_to)
        self._taken[stream, client] = accepted  # the last one of its stream
        clients = [key for key in self._taken if key[0] == stream]
        for key in clients[:-_CLIENTS_MAX]:
            del self._taken[key]
        return accepted

    def all(self) -> list[AcceptedNumbers]:
        """Returns what is taken, the client that sent last at the end."""
        return [
            AcceptedNumbers(stream, client, taken.up_to, taken.beyond)
            for (stream, client), taken in self._taken.items()
        ]

    @classmethod
    def of(cls, recorded: Iterable[AcceptedNumbers]) -> MessageDedup:
        """Inverse of :meth:`all`."""
        dedup = cls()
        for numbers in recorded:
            dedup._taken[numbers.stream, numbers.client] = _AcceptedSet(numbers.up_to, list(numbers.beyond))
        return dedup
