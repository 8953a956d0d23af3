"""The messages of one stream: unsent, perhaps not taken, and unanswered. The terms:

sent
    Written to the gRPC stream. The message may be lost with the stream.
taken
    On the log: durable. No message reports this. A numbered answer to an item proves it for the item's message and for
    every earlier message of the same stream, because the order is kept from the stream to the log.
answered
    An answer to the item itself has come.

After a lost stream, the client sends everything that is not known to be taken again, in the same order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

_NO_PROOF = -1  # the index of a message that no answer proves
_KEYS_KEPT = 1_000_000  # asks may stay pending for ever; beyond this number the oldest no longer serve as proof


@dataclass(slots=True)
class OutboxEntry:
    """One message.

    :param index: its place in the stream's order, over reconnections.
    :param payload: serialised, so that later changes of the caller's message have no effect.
    :param keys: of the items that get an answer.
    :param sent_at: monotonic seconds of the last sending.
    :param is_begun: its writing has begun.
    :param is_taken: an answer to an earlier sending proved that while it was about to be sent again.
    """

    index: int
    payload: bytes
    keys: tuple[Hashable, ...]
    sent_at: float = 0.0
    times_sent: int = 0
    is_begun: bool = False
    is_taken: bool = False


class Outbox:
    """See the module's docstring. Belongs to one event loop.

    :param messages: greatest number of sent messages that are kept.
    :param size_bytes: greatest size of them.
    :param window_s: a message sent longer ago counts as taken.
    """

    def __init__(self, messages: int, size_bytes: int, window_s: float) -> None:
        self._limit_messages, self._limit_bytes, self._window_s = messages, size_bytes, window_s
        self._next_index = 0
        self._unsent: deque[OutboxEntry] = deque()
        self._sent: deque[OutboxEntry] = deque()
        self._sent_bytes = 0
        self._unanswered: OrderedDict[Hashable, int] = OrderedDict()  # key → index of its first message
        self._repeated: OrderedDict[Hashable, None] = OrderedDict()  # keys that were sent more than once
        self._hints: OrderedDict[Hashable, int] = OrderedDict()  # item that may be confirmed → index of its message

    @property
    def unsent(self) -> int:
        """Number of messages that wait for the network."""
        return len(self._unsent)

    @property
    def kept(self) -> int:
        """Number of messages sent and not known to be taken."""
        return len(self._sent)

    @property
    def unanswered(self) -> int:
        """Number of items sent, or to be sent, without an answer."""
        return len(self._unanswered)

    def append(
        self, payload: bytes, keys: Iterable[Hashable], hints: Iterable[Hashable] = (), *, proves: bool = True
    ) -> OutboxEntry:
        """Appends a message to the order.

        :param keys: of the items that get an answer.
        :param hints: of items that may be confirmed. No caller waits for that, but it proves that the message was
            taken. Nothing else may confirm the same item.
        :param proves: an answer to one of ``keys`` proves that this message was taken. False: an earlier message with
            the same key may be answered several times.
        """
        entry = OutboxEntry(self._next_index, payload, tuple(keys))
        self._next_index += 1
        self._unsent.append(entry)
        for key in entry.keys:
            self._unanswered.setdefault(key, entry.index if proves else _NO_PROOF)
        for hint in hints:
            self._hints.setdefault(hint, entry.index)
        for kept in (self._unanswered, self._hints):
            while len(kept) > _KEYS_KEPT:
                kept.popitem(last=False)
        return entry

    @property
    def next_number(self) -> int:
        """Number of the next message that is written, from 1."""
        return (self._unsent[0].index if self._unsent else self._next_index) + 1

    def first_unsent(self) -> OutboxEntry | None:
        return self._unsent[0] if self._unsent else None

    def has_room(self, now: float) -> bool:
        """Tells whether one more message may be sent and kept. If space is needed, forgets messages older than the
        window.
        """
        while self._is_full() and self._sent and now - self._sent[0].sent_at >= self._window_s:
            self._sent_bytes -= len(self._sent.popleft().payload)
        return not self._is_full()

    def room_in_s(self, now: float) -> float:
        """Returns the seconds until the oldest kept message leaves its window; 0 if there is room."""
        return max(0.0, self._sent[0].sent_at + self._window_s - now) if self._is_full() and self._sent else 0.0

    def begun(self, entry: OutboxEntry) -> None:
        """Records that the writing of a message begins: from now on the gateway may have it."""
        entry.is_begun = True

    def sent(self, entry: OutboxEntry, now: float) -> None:
        """Records that a message was written. It was the first unsent one when the writing began."""
        if not self._unsent or self._unsent[0] is not entry:
            return  # dropped meanwhile, by a registration
        self._unsent.popleft()
        entry.sent_at = now
        entry.times_sent += 1
        if entry.is_taken:
            return
        self._sent.append(entry)
        self._sent_bytes += len(entry.payload)

    def lost(self) -> int:
        """The stream is lost: messages that may not have been taken are unsent again. Returns their number."""
        if self._unsent and self._unsent[0].is_begun and not self._unsent[0].times_sent:
            # The stream was lost while it was written: whether the gateway took it is as unknown as of the others.
            self._unsent[0].times_sent += 1
            self._repeated.update(dict.fromkeys(self._unsent[0].keys))
        for entry in self._sent:
            self._repeated.update(dict.fromkeys(entry.keys))
        while len(self._repeated) > _KEYS_KEPT:
            self._repeated.popitem(last=False)
        count = len(self._sent)
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._sent_bytes = 0
        while self._unsent and self._unsent[0].is_taken:
            self._unsent.popleft()
        return count

    def answered(self, key: Hashable, *, numbered: bool) -> bool:
        """Records an answer for the item. Returns False for a second answer, caused by the second sending; keep it
        back.

        :param numbered: a response with a number comes from the log, and so proves that the message was taken. An
            unnumbered one (admission's) proves nothing about earlier messages.
        """
        index = self._unanswered.pop(key, None)
        if index is None:
            if key in self._repeated:
                del self._repeated[key]
                return False
            return True
        if numbered:
            self._taken(index)
        return True

    def is_repeated(self, key: Hashable) -> bool:
        """Tells whether the item was sent twice and has an answer: another answer may come."""
        return key in self._repeated and key not in self._unanswered

    def withdrawn(self, key: Hashable) -> None:
        """The item was withdrawn or given up, and will get no answer any more. This proves nothing: what was sent for
        it last may still be under way when its application or its node is removed.
        """
        self._unanswered.pop(key, None)

    def confirmed(self, hint: Hashable) -> None:
        """Records that a numbered response has confirmed an item."""
        index = self._hints.pop(hint, None)
        if index is not None:
            self._taken(index)

    def clear(self) -> None:
        """Drops everything, at a registration: earlier messages do not count any more."""
        self._unsent.clear()
        self._sent.clear()
        self._sent_bytes = 0
        self._unanswered.clear()
        self._repeated.clear()
        self._hints.clear()

    def _taken(self, index: int) -> None:
        while self._sent and self._sent[0].index <= index:
            self._sent_bytes -= len(self._sent.popleft().payload)
        # What is due to be sent again is sent all the same: the gateway counts the messages of a connection. The
        # scheduler takes it once.
        for entry in self._unsent:
            if entry.index > index or not entry.times_sent:
                break
            entry.is_taken = True

    def _is_full(self) -> bool:
        return len(self._sent) >= self._limit_messages or self._sent_bytes >= self._limit_bytes
