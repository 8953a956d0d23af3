"""The laws of every life: history adds up, records say what there is, and at rest nothing is left to be done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from event_books import EventBooks, UnevenBooks
from event_books_shown import numbers_of, of_core
from muster_bus.log import OutRecord
from muster_bus.topics import HEADER_TRACKING
from muster_core import invariants
from muster_core.model.commands import Command
from muster_core.model.outcome import Event, EventType, Fact, Outcome
from muster_core.scheduler import SchedulerCore
from muster_proto.si.v1 import si_pb2 as si
from muster_state import state_codec
from muster_state.state_folder import RmInfo
from simulation.books import AuditFailure, must
from simulation.hearing_asks import plain
from simulation.records import RM, as_folded, difference, published, sums
from simulation.run import EVERYTHING, Law, Run


@dataclass(frozen=True)
class Pace:
    """How often it is looked at what takes long: after so many steps each. 0: at restarts and in the end only."""

    records: int = 8
    rest: int = 3
    history: int = 1
    invariants: int = 1


class Common(Law):
    """All of them, but for history.

    :param check_core: look at the core's own invariants too; not where the auditor alone must notice.
    """

    def __init__(self, pace: Pace, *, check_core: bool = True) -> None:
        self._pace = pace
        self._check_core = check_core

    def decided(self, run: Run, facts: list[Fact], events: list[Event], budget: int) -> None:
        """Fails if another cycle at rest has any output."""
        core, number, pace = run.core, len(run.steps), self._pace
        if self._check_core and number % pace.invariants == 0:
            invariants.check(core, exhausted=core.exhausted)
        if core.exhausted:
            due_ns = core.next_deadline_ns()
            must(due_ns is None or due_ns > run.now_ns, "rest", f"a deadline {due_ns} is due at {run.now_ns}")
            if number % pace.rest == 0:
                run.tally["cycle: nothing new, nothing said"] += 1
                again = core.cycle(run.now_ns, EVERYTHING)
                said = [*map(plain, again.facts), *again.events, *again.objects()]
                must(not said, "rest", f"with nothing new, another cycle says {said[:3]}")
                must(core.exhausted, "rest", "another cycle does not end")
        if pace.records and number % pace.records == 0:
            compare_records(run)

    def restarts(self, run: Run) -> None:
        compare_records(run)

    def restarted(self, run: Run, info: RmInfo) -> None:
        if self._check_core:
            invariants.check(run.core)

    def over(self, run: Run) -> None:
        compare_records(run)
        if self._check_core:
            invariants.check(run.core)


def compare_records(run: Run) -> None:
    """Fails unless the records, a fold and a follower equal the core."""
    topic, now = run.topic, published(run.core)
    stale = [key for key in now if now[key] != topic.get(key) and _as_folded(key, topic) == _as_folded(key, now)]
    now.update((key, topic[key]) for key in stale)  # (after a restart a record may still say how many)
    must(now == topic, "record", difference(now, topic))
    core = run.folded()
    topic = {key: as_folded(key, value) for key, value in topic.items()}
    folded, followed = published(core), published(run.followed)
    # (Where nobody is asked, none is left.)
    left_over = in_flight(run.core, RM) - folded.keys() if run.policy is not None else set()
    if run.followed is not run.core:
        left = {key: value for key, value in followed.items() if key not in left_over}
        must(left == {key: topic[key] for key in topic if key not in left_over}, "follow", difference(left, topic))
    for key in left_over:
        del topic[key]
    must(folded == topic, "fold", difference(folded, topic))
    if not any(partition.questions.open for partition in run.core.partitions.values()):
        must(sums(core) == sums(run.core), "fold", difference(sums(core), sums(run.core)))
        must(sums(run.followed) == sums(run.core), "follow", difference(sums(run.followed), sums(run.core)))


def _as_folded(key: bytes, records: dict[bytes, bytes]) -> bytes:
    return as_folded(key, records.get(key, b""))


def in_flight(core: SchedulerCore, rm_id: str) -> set[bytes]:
    """Lists that nobody is on, of users that are gone, where an RM is asked: they go with the next whole cycle."""
    return {
        state_codec.key_of(rm_id, name, each)
        for name, partition in core.partitions.items()
        for queue in partition.queues.values()
        for each in queue.waitlists.values()
        if not each.groups and each.wait_point is None
    }


class History(Law):
    """The law of history (docs/events.md, "Sums"): after each cycle the sums of all events are what there is, over
    restarts and registrations. The ledger is ``tests/event_books.py``, which has no code of the core.

    :ivar every: so many steps between two comparisons.
    """

    def __init__(self, tally: Counter[str], every: int = 1) -> None:
        self._books = EventBooks()
        self._tally = tally
        self._runs = 0
        self.every = every

    def began(self, run: Run, out: Outcome) -> None:
        self.take(out)
        self.compare(run.followed)

    def ends(self, run: Run, out: Outcome) -> None:
        self.take(out)

    def wrote(self, run: Run, out: Outcome) -> None:
        self.take(out)
        if len(run.steps) % self.every == 0:
            self.compare(run.followed)

    def take(self, out: Outcome) -> None:
        """What came out. Raises AuditFailure where a sum goes below zero, or something leaves with more than that."""
        self._runs += out.made + out.reported - out.ended
        must(
            out.ended >= out.released + out.dropped, "history", f"{out.released} and {out.dropped} of {out.ended} ended"
        )
        try:
            for event in out.events:
                if event.type is not EventType.REQUEST:
                    self._books.take(*numbers_of(event))
        except UnevenBooks as error:
            raise AuditFailure("history", str(error)) from None

    def take_record(self, output: OutRecord) -> None:
        """Likewise an event as it is on the log; those that are for the RM only are in no sum."""
        if dict(output.headers)[HEADER_TRACKING] == b"1":
            try:
                self._books.take_record(si.EventRecord.FromString(output.value or b""))
            except UnevenBooks as error:
                raise AuditFailure("history", str(error)) from None

    def compare(self, core: SchedulerCore) -> None:
        """Raises AuditFailure where the sums, or what began less what ended, are not what the core has."""
        self.compare_events(core)
        runs = sum(len(app.allocations) for each in core.partitions.values() for app in each.apps.values())
        must(self._runs == runs, "history", f"{self._runs} began and did not end, {runs} run")

    def compare_events(self, core: SchedulerCore) -> None:
        """Compares the events' sums only."""
        try:
            self._books.compare(of_core(core))
        except UnevenBooks as error:
            raise AuditFailure("history", str(error)) from None
        self._tally["history: compared"] += 1


class Told(Law):
    """Counts what is said to the core."""

    def hears(self, run: Run, command: Command, offered: object) -> None:
        run.tally[f"command: {type(command).__name__}"] += 1
