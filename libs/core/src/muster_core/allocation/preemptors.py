"""The groups of one waitlist that may preempt: since when each may, and which of them are alike.

A search for victims gives the same answer for most groups of one list and one priority: they are *alike*, and one
search answers for all of them. The others are *single*: their answers may differ, so each is looked at for itself. A
group that comes or goes costs O(log n). So a list of 10,000 groups costs nothing while nothing changes, and a new group
costs one search at most: the answers for other priorities are kept until the partition changes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from sortedcontainers import SortedList

from muster_core.model.application import Ask, AskGroup
from muster_core.model.queue import Waitlist
from muster_core.model.reasons import NoPreemptionReason

# The interval between two turns of a waitlist (YuniKorn's interval between preemption checks of an ask).
RETRY_NS = 15 * 1_000_000_000


class Preemptors:
    """The groups of one waitlist whose asks may preempt.

    :ivar lines: by priority, the groups that are alike: (when the first ask was created, its submission, group), the
        oldest first.
    :ivar single: the groups that are single.
    :ivar answers: by priority, why preemption does not help the groups that are alike, in one state of the partition.
    :ivar unanswered: the other priorities of groups that are alike.
    """

    __slots__ = (
        "_answered_version",
        "_created",
        "_every_own",
        "_keys",
        "_old_ns",
        "_phases",
        "answers",
        "lines",
        "single",
        "unanswered",
    )

    def __init__(self, *, every_own: bool) -> None:
        """:param every_own: a rule looks at all allocations of the asking application, not only at lower priorities."""
        self._every_own = every_own
        self.lines: dict[int, Any] = {}
        self.single: dict[AskGroup, None] = {}
        self._keys: dict[AskGroup, tuple[int, int]] = {}
        self._created: Any = SortedList()  # when the first asks of groups that are alike were created
        self.answers: dict[int, NoPreemptionReason] = {}
        self.unanswered: dict[int, None] = {}
        self._answered_version = -1
        # Of the first asks that were created until this time, when they were created, modulo the interval of turns.
        self._old_ns = 0
        self._phases: Any = SortedList()

    def add(self, group: AskGroup) -> None:
        """Adds a group that was parked."""
        if not group.preempts:
            return
        if self._is_single(group):
            self.single[group] = None
            return
        head = group.head()
        assert head is not None, f"{group} has nothing that could wait"
        created_ns, submission = head.created_ns, head.submission
        self._keys[group] = (created_ns, submission)
        line = self.lines.get(group.priority)
        if line is None:
            line = self.lines[group.priority] = SortedList()
        line.add((created_ns, submission, group))
        self._created.add(created_ns)
        if line[0][-1] is group:  # (an older ask may use nodes that are reserved against younger ones)
            self.answers.pop(group.priority, None)
            self.unanswered[group.priority] = None
        if created_ns <= self._old_ns:
            self._phases.add(created_ns % RETRY_NS)

    def remove(self, group: AskGroup) -> None:
        """Removes a group that leaves the list, or changes its place there."""
        key = self._keys.pop(group, None)
        if key is None:
            self.single.pop(group, None)
            return
        line = self.lines[group.priority]
        line.remove((*key, group))
        self._created.remove(key[0])
        if not line:
            del self.lines[group.priority]
            self.answers.pop(group.priority, None)
            self.unanswered.pop(group.priority, None)
        if key[0] <= self._old_ns:
            self._phases.remove(key[0] % RETRY_NS)

    def review(self, group: AskGroup) -> None:
        """Judges again whether a group on the list is single."""
        self.remove(group)
        self.add(group)

    def recheck_singles(self) -> None:
        """Judges again the groups that were single: the reason may be over."""
        for group in list(self.single):
            self.review(group)

    def _is_single(self, group: AskGroup) -> bool:
        """Whether a search for the group may have another answer than one for other groups of its priority."""
        app, head = group.app, group.head()
        return (
            head is None
            or bool(head.reserved_node)
            or bool(head.planned_ns)  # (it waits for its victims, or for its next attempt)
            or head.refusals is not None
            or app.gang is not None
            or app.lowest_held < group.priority
            or (self._every_own and bool(app.allocations))
        )

    def invariant_violation(self, groups: Iterable[AskGroup]) -> str:
        """What is wrong here, if these are the groups on the list; "": nothing."""
        alike: list[tuple[int, int, int, AskGroup]] = []
        for group in groups:
            if group.preempts and group not in self.single:
                head = group.head()
                if head is None or self._is_single(group):
                    return f"{group} is not single"
                alike.append((-group.priority, head.created_ns, head.submission, group))
        alike.sort(key=lambda candidate: candidate[:3])
        listed = [
            (-priority, *entry) for priority in sorted(self.lines, reverse=True) for entry in self.lines[priority]
        ]
        if alike != listed or len(self._keys) != len(listed) or not all(self.lines.values()):
            return f"{listed} may preempt, should be {alike}"
        if list(self._created) != sorted(created_ns for _, created_ns, _, _ in alike):
            return f"{self._created} are not when the first asks were created"
        if self.answers.keys() | self.unanswered.keys() != self.lines.keys() or self.answers.keys() & self.unanswered:
            return f"{self.answers} and {self.unanswered} are not the priorities of {self.lines}"
        phases = sorted(created_ns % RETRY_NS for _, created_ns, _, _ in alike if created_ns <= self._old_ns)
        return "" if phases == list(self._phases) else f"turns at {self._phases}, should be {phases}"

    def review_answers(self, version: int) -> None:
        """Drops the answers if they are those of another state of the partition."""
        if version != self._answered_version:
            self._answered_version = version
            self.answers, self.unanswered = {}, dict.fromkeys(self.lines)  # (the dropped ones stay whole for readers)

    def is_alike(self, group: AskGroup) -> bool:
        """Whether the group is on the list and is not single."""
        return group in self._keys

    # ---- times of groups that are alike ------------------------------------------------------------------------------

    def first_ns(self) -> int | None:
        """When the oldest first ask was created; None: there is no group that is alike to others."""
        return self._created[0] if self._created else None

    def next_after(self, after_ns: int) -> int | None:
        """When the next first ask was created; None: all were until then."""
        index = self._created.bisect_right(after_ns)
        return self._created[index] if index < len(self._created) else None

    def next_turn(self, after_ns: int) -> int | None:
        """The first time after this one that is a whole multiple of the interval after a first ask was created. (The
        creation itself counts, too.)
        """
        self._move(after_ns)
        next_ns = self.next_after(after_ns)
        if self._phases:
            phase = after_ns % RETRY_NS
            index = self._phases.bisect_right(phase)
            wait_ns = self._phases[index] - phase if index < len(self._phases) else self._phases[0] + RETRY_NS - phase
            if next_ns is None or after_ns + wait_ns < next_ns:
                next_ns = after_ns + wait_ns
        return next_ns

    def _move(self, old_ns: int) -> None:
        before, self._old_ns = self._old_ns, old_ns
        for created_ns in self._created.irange(min(before, old_ns) + 1, max(before, old_ns)):
            if old_ns > before:
                self._phases.add(created_ns % RETRY_NS)
            else:
                self._phases.remove(created_ns % RETRY_NS)


class NoVictimsCache:
    """Why preemption helps no group of one list, by kind of group, as long as nothing changes.

    Groups of one kind get the same answer. Groups that are alike, of one priority, are a kind; so is each single group.
    While a limit of running applications is reached, groups whose applications run already are another kind than the
    others.
    """

    __slots__ = ("_answers", "_full", "_known", "_latest_ns", "_now_ns", "_rights", "_waitlist")

    def __init__(self, waitlist: Waitlist, rights: Preemptors, now_ns: int, version: int) -> None:
        """``version``: of the partition's state."""
        self._waitlist = waitlist
        self._rights = rights
        self._now_ns = now_ns
        self._latest_ns = now_ns - waitlist.leaf.policy.preemption_delay_ns
        self._full = any(ledger.is_full for ledger in (*waitlist.trackers, *waitlist.leaf.ancestry))
        self._known: dict[object, NoPreemptionReason] = {}
        # By priority, the answers that are known of earlier turns in the same state.
        rights.review_answers(version)
        self._answers: dict[int, NoPreemptionReason] | None = None if self._full else rights.answers

    def one_of_each(self) -> list[AskGroup]:
        """One group of each kind without an answer whose asks may preempt now: of groups that are alike, the one with
        the oldest ask (of the highest rank).
        """
        rights = self._rights
        by_kind: dict[object, AskGroup] = {}
        for priority in sorted(rights.lines if self._answers is None else rights.unanswered, reverse=True):
            for created_ns, _, group in rights.lines[priority]:
                if created_ns > self._latest_ns:
                    break
                by_kind.setdefault(self._kind(group), group)
                if not self._full:
                    break
        return list(by_kind.values()) + [group for group in rights.single if self.asking(group) is not None]

    def next_groups(self, had_theirs: Container[AskGroup], most: int) -> list[AskGroup]:
        """The next groups in the order of the list, with up to ``most`` whose asks may preempt now."""
        groups: list[AskGroup] = []
        for *_, group in self._waitlist.groups:
            if group.preempts and group not in had_theirs:
                groups.append(group)
                most -= self.asking(group) is not None
                if not most:
                    break
        return groups

    def asking(self, group: AskGroup) -> Ask | None:
        """The ask of the group that may preempt now; None: there is none."""
        asking = next_preemptor(group)
        return asking if asking is not None and preempts_from(asking) <= self._now_ns else None

    def _kind(self, group: AskGroup) -> object:
        if not self._rights.is_alike(group):
            return group
        return (group.priority, not self._full or group.app.counted or group.app.independent)

    def of(self, group: AskGroup) -> NoPreemptionReason | None:
        """The answer for the group's kind; None: it is not known."""
        no = self._known.get(self._kind(group)) if self._known else None
        if no is None and self._answers and self._rights.is_alike(group):
            no = self._answers.get(group.priority)
        return no

    def add(self, group: AskGroup, no: NoPreemptionReason) -> None:
        """Adds an answer for the group's kind."""
        rights = self._rights
        if self._answers is not None and self._answers is rights.answers and rights.is_alike(group):
            self._answers[group.priority] = no
            rights.unanswered.pop(group.priority, None)
        else:
            self._known[self._kind(group)] = no

    def clear(self) -> None:
        """Forgets the answers: something changes."""
        self._known.clear()
        self._answers = None

    def last(self, had_theirs: Container[AskGroup]) -> NoPreemptionReason | None:
        """The answer for the last group that has not had its turn; None: there is none."""
        for *_, group in reversed(self._waitlist.groups) if self._known or self._answers else ():
            if group.preempts and group not in had_theirs and self.asking(group) is not None:
                return self.of(group)
        return None


def preempts_from(ask: Ask) -> int:
    """From when the scheduler may choose victims for the ask: after its leaf's delay; again after a lost claim, once
    the interval between two attempts is over.
    """
    if ask.planned_ns:
        return ask.planned_ns + RETRY_NS
    return ask.created_ns + ask.app.queue.policy.preemption_delay_ns


def next_preemptor(group: AskGroup) -> Ask | None:
    """The ask of the group that may preempt first, of equal ones the oldest; None if each has a claim on what victims
    leave.
    """
    head = group.head()
    if head is not None and not head.planned_ns:
        return head
    best: tuple[int, int, int, Ask] | None = None
    for created_ns, submission, _, ask in group.heap:
        if ask.group is group and not ask.gone and not ask.preempts and ask.pending > 0:
            candidate = (preempts_from(ask), created_ns, submission, ask)
            if best is None or candidate[:3] < best[:3]:
                best = candidate
    return None if best is None else best[3]
