"""Usage of one RM as a fold of its events: resource-seconds in windows. Pure; integers only. The terms:

usage
    The resources that an application, a queue, a user or a group holds, integrated over time: a quantity held for a
    second is one quantity-second. This module computes in quantity × ns, so nothing is ever rounded.

subject
    The owner of usage: (kind, name). An allocation counts for its application, for the application's queue and for
    every queue above. Users and groups have events of their own.

window
    Time is divided into windows of one length, from 1970 on. It is the time of the events, never the wall clock. An
    event with an earlier time than the one before it counts as simultaneous with that one.

book
    The state of a subject: the resources that it holds, and the integral, the peak and the new allocations of the
    window of its last change. A book that changes is written as a :class:`WindowUsage`. A book that does not change
    costs nothing, however many windows pass. Hence the contract: *the resources that a subject holds at the end of a
    written window are held in every later window until the next written one*. A book that holds something is written
    again after ``refresh_windows``, so that old records may be deleted.

repeats
    Event ids of an RM grow without a gap. The fold drops events that it has applied: by its mark, and after a restart
    in the middle of a batch by the id in each book. :meth:`RmUsage.flush` explains why these two are enough.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

Quantities = dict[str, int]

S_IN_NS = 1_000_000_000


class SubjectKind(StrEnum):
    """The kinds of subjects."""

    APPLICATION = "application"
    QUEUE = "queue"
    USER = "user"
    GROUP = "group"


class FactKind(StrEnum):
    """The kinds of meanings that an event has for usage."""

    GAIN = "gain"  # the subject holds more; of an application: an allocation
    LOSS = "loss"
    JOIN = "join"  # an application enters a queue
    LEAVE = "leave"


class UsageFact(NamedTuple):
    """The meaning of an event for usage.

    :ivar kind: APPLICATION, USER or GROUP.
    :ivar queue: path, of JOIN and LEAVE.
    """

    step: FactKind
    kind: SubjectKind
    name: str
    quantities: Mapping[str, int] = {}
    queue: str = ""


class WindowUsage(NamedTuple):
    """Usage of a subject in the window that starts at ``start_ns``, as if nothing changed until its end.

    :ivar quantity_ns: integrals over the whole window, quantity × ns.
    :ivar allocated: the resources that it holds from ``at_ns`` on: in the rest of this window, and in later windows
        until the next written one.
    :ivar peak: the largest amounts that it held at any time in the window.
    :ivar allocations: how many allocations it got in the window.
    :ivar at_ns: time of the last change.
    :ivar event_id: of the last change.
    """

    kind: SubjectKind
    name: str
    start_ns: int
    quantity_ns: Quantities
    allocated: Quantities
    peak: Quantities
    allocations: int
    at_ns: int
    event_id: int


@dataclass(slots=True)
class _SubjectUsage:
    kind: SubjectKind
    name: str
    start_ns: int
    at_ns: int
    event_id: int = -1
    quantity_ns: Quantities = field(default_factory=dict)
    held: Quantities = field(default_factory=dict)
    peak: Quantities = field(default_factory=dict)
    allocations: int = 0
    shown_ns: int = 0  # start of the window that was shown last
    queue: str = ""  # of an application
    joined: bool = False  # it is in its queue now


_Subject = tuple[SubjectKind, str]
# Key parts and value of a record that the deriver keeps; None deletes it.
StateWrite = tuple[tuple[str, str], bytes | None]
_MARK = ("rm", "-")
_MARK_FIELDS = ("applied", "instance", "ended", "until_ns", "window_ns")
# Bounds the names of quantities in one book: three times their texts and digits stay below the log's limit of a record
# (1 MiB). Few names need no counting.
_NAMES_BYTES_MAX, _NAME_OVERHEAD_BYTES, _FEW_NAMES = 256 * 1024, 48, 32
# So many ended instances are remembered: a repeated event of an older one would be years old.
_ENDED_INSTANCES_MAX = 16


class UsageRecords(NamedTuple):
    """The records of a batch.

    :ivar windows: to be written first.
    :ivar states: to be written after those, in this order.
    """

    windows: list[WindowUsage]
    states: list[StateWrite]


class RmUsage:
    """The usage of one RM.

    :param window_ns: length of a window.
    :param refresh_windows: a book that holds something is written at least every so many windows.
    :param instance: the instance of the following events. A new fold is flushed once before its first event.
    """

    def __init__(self, window_ns: int, refresh_windows: int, instance: str = "") -> None:
        self.window_ns, self.refresh_windows = window_ns, refresh_windows
        self.instance = instance
        self.ended: list[str] = []  # earlier instances: their events are repeats
        self.applied = -1  # the last event id that is in all its books
        self.until_ns = 0  # time of the newest event: usage is known up to it
        self.repeated = self.unmatched = self.omitted_quantities = 0
        self._usage_by_subject: dict[_Subject, _SubjectUsage] = {}
        self._touched: dict[_Subject, _SubjectUsage] = {}
        self._dropped: list[_Subject] = []
        self._windows: list[WindowUsage] = []
        self._holding: OrderedDict[_Subject, _SubjectUsage] = OrderedDict()  # in the order of shown_ns
        self._idle: OrderedDict[_Subject, _SubjectUsage] = (
            OrderedDict()
        )  # holds nothing; in the order of its last change
        self._marked = True  # the first mark names the instance of the first books
        self._flushed = -1  # the mark that the last flush wrote

    def __len__(self) -> int:
        return len(self._usage_by_subject)

    # ---- events ----------------------------------------------------------------------------------------------------

    def apply(self, event_id: int, at_ns: int, fact: UsageFact | None) -> bool:
        """Takes an event, in the order of the log; ``fact`` None: no usage. False: the event is a repeat."""
        if event_id <= self.applied:
            self.repeated += 1
            return False
        self.applied = event_id
        self._marked = True
        self.until_ns = max(self.until_ns, at_ns)
        if fact is not None:
            self._apply(event_id, fact)
        return True

    def begin_instance(self, instance: str, at_ns: int) -> None:
        """Begins another instance of the RM, whose ids start again. The resources of the earlier instance are not held
        any more.

        The caller flushes before and after, so that no batch holds events of two instances.
        """
        self.until_ns = max(self.until_ns, at_ns)
        for book in self._usage_by_subject.values():
            self._roll(book, self.until_ns)
            book.held, book.queue, book.joined = {}, "", False
            self._note(book, -1)
        self.ended = [*self.ended, self.instance][-_ENDED_INSTANCES_MAX:]
        self.instance, self.applied, self._flushed, self._marked = instance, -1, -1, True

    def _apply(self, event_id: int, fact: UsageFact) -> None:
        book = self._get_or_create(fact.kind, fact.name)
        if event_id <= book.event_id:
            return  # a crash cut off the event's batch after this book, and so its queues' books, had been written
        match fact.step:
            case FactKind.GAIN | FactKind.LOSS:
                sign = 1 if fact.step is FactKind.GAIN else -1
                for path in ancestry(book.queue):
                    self._change(
                        self._get_or_create(SubjectKind.QUEUE, path), event_id, fact.quantities, sign, max(sign, 0)
                    )
                self._change(book, event_id, fact.quantities, sign, max(sign, 0))
            case FactKind.JOIN | FactKind.LEAVE:
                book.joined = fact.step is FactKind.JOIN
                if book.joined and book.queue != fact.queue:
                    self._move(book, event_id, fact.queue)
                self._note(book, event_id)

    def _move(self, book: _SubjectUsage, event_id: int, queue: str) -> None:
        """Moves an application into a queue, with the resources that it already holds."""
        before, after = set(ancestry(book.queue)), set(ancestry(queue))
        if book.held:
            for path in sorted(before - after):
                self._change(self._get_or_create(SubjectKind.QUEUE, path), event_id, book.held, -1, 0)
            for path in sorted(after - before):
                self._change(self._get_or_create(SubjectKind.QUEUE, path), event_id, book.held, 1, 0)
        book.queue = queue

    def _get_or_create(self, kind: SubjectKind, name: str) -> _SubjectUsage:
        book = self._usage_by_subject.get((kind, name))
        if book is None:
            book = self._usage_by_subject[kind, name] = _SubjectUsage(
                kind, name, self._start_of(self.until_ns), self.until_ns
            )
        return book

    def _change(
        self, book: _SubjectUsage, event_id: int, quantities: Mapping[str, int], sign: int, allocations: int
    ) -> None:
        if event_id <= book.event_id:
            return  # as above
        self._roll(book, self.until_ns)
        for name, value in self._within_names_limit(book, quantities):
            now = book.held.get(name, 0) + sign * value
            if now < 0:
                # The gain happened before the log began, or while tracking was off.
                self.unmatched += 1
                now = 0
            if now:
                book.held[name] = now
            else:
                book.held.pop(name, None)
        book.allocations += allocations
        self._note(book, event_id)

    def _within_names_limit(self, book: _SubjectUsage, quantities: Mapping[str, int]) -> Iterable[tuple[str, int]]:
        """The quantities that the book has room for; names beyond the bound are counted in ``omitted_quantities``."""
        few = max(len(book.held), len(book.quantity_ns), len(book.peak)) + len(quantities) <= _FEW_NAMES
        if few or all(name in book.held for name in quantities):
            return quantities.items()
        existing = {*book.held, *book.quantity_ns, *book.peak}
        room = _NAMES_BYTES_MAX - sum(map(_name_bytes, existing))
        taken: list[tuple[str, int]] = []
        for name, value in quantities.items():
            if name not in existing:
                room -= _name_bytes(name)
                if room < 0:
                    self.omitted_quantities += 1
                    continue
            taken.append((name, value))
        return taken

    def _note(self, book: _SubjectUsage, event_id: int) -> None:
        subject = (book.kind, book.name)
        book.event_id = event_id
        self._touched[subject] = book
        if book.held:
            self._idle.pop(subject, None)
            if subject not in self._holding:
                self._holding[subject] = book
        else:
            self._holding.pop(subject, None)
            self._idle[subject] = book
            self._idle.move_to_end(subject)

    def _roll(self, book: _SubjectUsage, at_ns: int) -> None:
        """Extends the book's integrals up to a time."""
        if at_ns <= book.at_ns:
            return
        start_ns = self._start_of(at_ns)
        if start_ns == book.start_ns:
            took_ns = at_ns - book.at_ns
            for name, value in book.held.items():
                book.quantity_ns[name] = book.quantity_ns.get(name, 0) + value * took_ns
            _raise(book.peak, book.held)
        else:
            # The window that ends is written as it ended; the windows in between follow from the held resources.
            if (book.kind, book.name) in self._touched:
                self._add_window(book)
            took_ns = at_ns - start_ns
            book.quantity_ns = {name: value * took_ns for name, value in book.held.items()} if took_ns else {}
            book.peak, book.allocations, book.start_ns = dict(book.held) if took_ns else {}, 0, start_ns
        book.at_ns = at_ns

    def _start_of(self, at_ns: int) -> int:
        return at_ns - at_ns % self.window_ns

    def _add_window(self, book: _SubjectUsage) -> None:
        if not (book.shown_ns or book.held or book.allocations or book.quantity_ns):
            return  # the application has entered its queue; nothing else happened
        rest_ns = book.start_ns + self.window_ns - book.at_ns
        whole = dict(book.quantity_ns)
        for name, value in book.held.items():
            whole[name] = whole.get(name, 0) + value * rest_ns
        peak = dict(book.peak)
        _raise(peak, book.held)
        self._windows.append(
            WindowUsage(
                book.kind, book.name, book.start_ns, whole, dict(book.held), peak, book.allocations,
                book.at_ns, book.event_id,
            )
        )  # fmt: skip
        book.shown_ns = book.start_ns
        subject = (book.kind, book.name)
        if subject in self._holding:
            self._holding.move_to_end(subject)

    # ---- records ---------------------------------------------------------------------------------------------------

    def flush(self) -> UsageRecords:
        """The records of all changes since the last flush.

        A crash may cut the order of the states anywhere: queues, users and groups, then applications, then the mark.
        Repeated events begin after the mark that was written. If an application's book was written, its queues' books
        were written, too, and drop the repeats by their ids. If it was not, the old book still names the application's
        queue. A book is deleted only when the mark that was written *before* is past its last change, so no event that
        changed it can be repeated.
        """
        # 1. books that hold something and were last written long ago
        now_start_ns = self._start_of(self.until_ns)
        due_ns = now_start_ns - self.refresh_windows * self.window_ns
        while self._holding:
            book = next(iter(self._holding.values()))
            if book.shown_ns > due_ns:
                break
            self._roll(book, self.until_ns)
            self._touched[book.kind, book.name] = book
            book.shown_ns = now_start_ns
            self._holding.move_to_end((book.kind, book.name))
        # 2. books that changed
        for book in self._touched.values():
            self._add_window(book)
        # 3. books that are not needed any more
        while self._idle:
            subject, book = next(iter(self._idle.items()))
            if book.start_ns >= now_start_ns or book.event_id > self._flushed:
                break
            del self._idle[subject]
            if not book.joined:
                self._dropped.append(subject)
                self._touched.pop(subject, None)
                del self._usage_by_subject[subject]
        # 4. states, in the order above
        states: list[StateWrite] = [
            (subject, None) for subject in self._dropped if subject not in self._usage_by_subject
        ]
        applications: list[StateWrite] = []
        for subject, book in self._touched.items():
            (applications if book.kind is SubjectKind.APPLICATION else states).append((subject, _encode(book)))
        states += applications
        if self._marked:
            states.append((_MARK, self._mark()))
            self._flushed = self.applied
        flushed = UsageRecords(self._windows, states)
        self._windows, self._dropped, self._marked = [], [], False
        self._touched.clear()
        return flushed

    def current_usage(self, kind: SubjectKind, name: str) -> Quantities:
        """The resources that a subject holds now."""
        book = self._usage_by_subject.get((kind, name))
        return dict(book.held) if book is not None else {}

    def _mark(self) -> bytes:
        return _dump({name: getattr(self, name) for name in _MARK_FIELDS})

    # ---- restart ---------------------------------------------------------------------------------------------------

    def restore(self, states: Iterable[tuple[tuple[str, str], bytes]]) -> int | None:
        """Takes the states that :meth:`flush` returned before a restart, the newest of each key, in any order.

        If the states have another length of windows, returns that length and takes nothing.
        """
        decoded: dict[tuple[str, str], Any] = {key: json.loads(value) for key, value in states}
        mark = decoded.pop(_MARK, None)
        if mark is not None:
            if mark["window_ns"] != self.window_ns:
                return int(mark["window_ns"])
            for name in _MARK_FIELDS:
                setattr(self, name, mark[name])
            self._flushed = self.applied
        for (kind, name), value in decoded.items():
            self._usage_by_subject[SubjectKind(kind), name] = _decode(SubjectKind(kind), name, value)
        for subject, book in sorted(self._usage_by_subject.items(), key=lambda item: (item[1].shown_ns, item[0])):
            if book.held:
                self._holding[subject] = book
        for subject, book in sorted(self._usage_by_subject.items(), key=lambda item: (item[1].event_id, item[0])):
            if not book.held:
                self._idle[subject] = book
        return None


def ancestry(path: str) -> Iterator[str]:
    """A queue's path and those of the queues above it, the lowest first."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _name_bytes(name: str) -> int:
    """An upper bound of its bytes in JSON, with the syntax around it."""
    return (len(name) if name.isascii() and name.isprintable() else 12 * len(name)) + _NAME_OVERHEAD_BYTES


def _raise(peak: Quantities, allocated: Quantities) -> None:
    for name, value in allocated.items():
        if value > peak.get(name, 0):
            peak[name] = value


def seconds(quantity_ns: int) -> str:
    """An integral as quantity-seconds, exact: a decimal number with up to nine places."""
    whole, part = divmod(quantity_ns, S_IN_NS)
    return f"{whole}.{part:09d}".rstrip("0") if part else str(whole)


_FIELDS = (
    "start_ns", "at_ns", "event_id", "quantity_ns", "held", "peak", "allocations", "shown_ns", "queue", "joined",
)  # fmt: skip


def _encode(book: _SubjectUsage) -> bytes:
    return _dump({name: getattr(book, name) for name in _FIELDS})


def _decode(kind: SubjectKind, name: str, value: Mapping[str, Any]) -> _SubjectUsage:
    return _SubjectUsage(kind, name, **value)


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
