"""Keeps the parked groups by waitlist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

from muster_core.allocation.preemptors import Preemptors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from muster_core.model.application import Application, AskGroup
    from muster_core.model.queue import Waitlist


class Ages:
    """The groups of one waitlist by priority and by the age of their first asks: by their rank (``rank.py``)."""

    __slots__ = ("_keys", "_lines")

    def __init__(self, groups: Iterable[AskGroup]) -> None:
        self._keys = {group: head.age for group in groups if (head := group.head()) is not None}
        lines: dict[int, list[tuple[Any, ...]]] = {}
        for group, age in self._keys.items():
            lines.setdefault(group.priority, []).append((*age, group))
        self._lines: dict[int, Any] = {priority: SortedList(line) for priority, line in lines.items()}

    def add(self, group: AskGroup) -> None:
        """Adds a group that was parked."""
        head = group.head()
        assert head is not None, f"{group} has nothing that could wait"
        self._keys[group] = head.age
        line = self._lines.get(group.priority)
        if line is None:
            line = self._lines[group.priority] = SortedList()
        line.add((*head.age, group))

    def remove(self, group: AskGroup) -> None:
        """Removes a group that leaves the list, or changes its place there."""
        line = self._lines[group.priority]
        line.remove((*self._keys.pop(group), group))
        if not line:
            del self._lines[group.priority]

    def lines(self) -> Iterator[Iterator[AskGroup]]:
        """For each priority, the groups, those with the oldest first asks first."""
        for line in self._lines.values():
            yield (entry[-1] for entry in line)

    def problem(self, groups: list[AskGroup]) -> str:
        """What is wrong here, if these are the groups on the list; "" if nothing is."""
        expected = {group: head.age for group in groups if (head := group.head()) is not None}
        lines = {group: entry[:2] for line in self._lines.values() for *entry, group in map(tuple, line)}
        if self._keys != expected or {group: tuple(key) for group, key in lines.items()} != expected:
            return f"{self._keys} are sorted by age, should be {expected}"
        return ""


class ParkedGroups:
    """Puts groups on waitlists and takes them off.

    :ivar awake: by waitlist, its group that was woken last.
    :ivar pressing: by waitlist, its group that was woken last because of its priority.
    :ivar rights: by waitlist, when its groups may preempt.
    :ivar ages: by waitlist, its groups by rank.
    :ivar unreported: by waitlist, its groups with asks that were not reported to the RM as too large for the cluster.
    """

    def __init__(self) -> None:
        self.awake: dict[Waitlist, AskGroup] = {}
        self.pressing: dict[Waitlist, AskGroup] = {}
        # (Only of lists that have had a turn: most lists wait for a moment.)
        self.rights: dict[Waitlist, Preemptors] = {}
        # (Only of lists for which a node that is reserved for another ask had room.)
        self.ages: dict[Waitlist, Ages] = {}
        self.unreported: dict[Waitlist, dict[AskGroup, None]] = {}

    def park(self, waitlist: Waitlist, group: AskGroup, key: tuple[Any, ...]) -> None:
        """Puts a group on the list, at the place of the key."""
        group.held = False
        waitlist.groups.add((*key, group))
        if waitlist.urgent is not None:
            waitlist.urgent.add((-group.priority, *key, group))
        group.parked_key = key
        group.app.parked += 1
        if group.unreported:
            self.mark_scale_up_pending(waitlist, group)
        if self.rights and (rights := self.rights.get(waitlist)) is not None:
            rights.add(group)
        if self.ages and (ages := self.ages.get(waitlist)) is not None:
            ages.add(group)
        if waitlist.bench is not None and _leads(waitlist, group):
            waitlist.requeue()

    def unpark(self, waitlist: Waitlist, group: AskGroup) -> None:
        """Takes a group off the list."""
        assert group.parked_key is not None, f"{group} is not parked"
        led = waitlist.bench is not None and _leads(waitlist, group)
        waitlist.groups.remove((*group.parked_key, group))
        if waitlist.urgent is not None:
            waitlist.urgent.remove((-group.priority, *group.parked_key, group))
        group.parked_key = None
        group.app.parked -= 1
        self.mark_scale_up_sent(waitlist, group)
        if self.rights and (rights := self.rights.get(waitlist)) is not None:
            rights.remove(group)
        if self.ages and (ages := self.ages.get(waitlist)) is not None:
            ages.remove(group)
        if led:
            waitlist.requeue()

    def in_flight_group(self, waitlist: Waitlist) -> AskGroup | None:
        """The list's group that was woken last, if it is still being tried."""
        return _if_ready(self.awake.get(waitlist))

    def pressed(self, waitlist: Waitlist) -> AskGroup | None:
        """The list's group that was woken last because of its priority, if it is still being tried."""
        return _if_ready(self.pressing.get(waitlist))

    def is_pressed(self, urgent: Waitlist, *lists: Waitlist | None) -> bool:
        """Whether a group of these lists is being tried that is as urgent as the most urgent one parked on a list."""
        best = urgent.urgent[0][0]
        for waitlist in lists:
            for group in (self.in_flight_group(waitlist), self.pressed(waitlist)) if waitlist is not None else ():
                if group is not None and -group.priority <= best:
                    return True
        return False

    def forget(self, waitlist: Waitlist) -> None:
        """Forgets a list that was removed."""
        self.awake.pop(waitlist, None)
        self.pressing.pop(waitlist, None)
        self.rights.pop(waitlist, None)
        self.ages.pop(waitlist, None)

    def preemptors_of(self, waitlist: Waitlist, *, every_own: bool) -> Preemptors:
        """When the list's groups may preempt. From now on, this is kept up to date."""
        rights = self.rights.get(waitlist)
        if rights is None:
            self.rights[waitlist] = rights = Preemptors(every_own=every_own)
            for *_, group in waitlist.groups:
                rights.add(group)
        return rights

    def ages_of(self, waitlist: Waitlist) -> Ages:
        """The list's groups by rank. From now on, this is kept up to date."""
        ages = self.ages.get(waitlist)
        if ages is None:
            self.ages[waitlist] = ages = Ages(entry[-1] for entry in waitlist.groups)
        return ages

    def review(self, group: AskGroup) -> None:
        """Judges again whether a parked group is single on its list, or like others."""
        if self.rights and group.parked_key is not None:
            rights = self.rights.get(group.app.queue.waitlists[group.wait_key])
            if rights is not None:
                rights.review(group)

    def review_all(self, app: Application) -> None:
        """The same for all groups of an application."""
        for group in app.groups.values() if self.rights and app.parked else ():
            self.review(group)

    def mark_scale_up_pending(self, waitlist: Waitlist, group: AskGroup) -> None:
        """Notes that the group has asks that may have to be reported to the RM."""
        self.unreported.setdefault(waitlist, {})[group] = None

    def mark_scale_up_sent(self, waitlist: Waitlist, group: AskGroup) -> None:
        """Notes that the group's asks were reported to the RM, or that the group left the list."""
        groups = self.unreported.get(waitlist)
        if groups is not None:
            groups.pop(group, None)
            if not groups:
                del self.unreported[waitlist]


def first_open(groups: Iterable[tuple[Any, ...]]) -> AskGroup | None:
    """The first group that has something to try: not one whose last ask was just placed, which is going."""
    for *_, group in groups:
        if group.head() is not None:
            first: AskGroup = group
            return first
    return None


def _leads(waitlist: Waitlist, group: AskGroup) -> bool:
    """Whether a parked group is the first of its list, in order or by priority."""
    if waitlist.groups[0][-1] is group:
        return True
    return waitlist.urgent is not None and waitlist.urgent[0][-1] is group


def _if_ready(group: AskGroup | None) -> AskGroup | None:
    return group if group is not None and group.ready_key is not None and group.head() is not None else None
