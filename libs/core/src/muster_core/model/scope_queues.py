"""The lines at task groups that see one proposal at a time (``allocation/exclusivity.py``)."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

from muster_core.model.application import Application
from muster_core.model.node import Node

if TYPE_CHECKING:
    from muster_core.model.application import Ask, AskGroup
    from muster_core.model.predicate_checks import PredicateCheck

What = Node | Application | tuple[Application, str] | None


class ExclusiveScope:
    """A scope that may see one proposal at a time.

    :ivar what: a node, an application, or a task group of an application; None: the RM.
    :ivar open: the open checks there.
    :ivar closed: no further proposal is made there until the open ones are answered.
    :ivar line: (key, group) of the task group's groups that stand in line, in order.
    :ivar awake: the group that left the line last.
    """

    __slots__ = ("awake", "closed", "line", "open", "what")

    def __init__(self, subject: What = None) -> None:
        self.what = subject
        self.open: dict[PredicateCheck, None] = {}
        self.closed = False
        self.line: list[tuple[Any, ...]] = []
        self.awake: AskGroup | None = None


class Later(ExclusiveScope):
    """The line of refused asks that give way to others.

    :ivar last: the ask that left the line last.
    :ivar mark: an ask with a larger submission number came after the last turn of the line, or after it began.
    :ivar owed: no proposal is made until the first in line can be called.
    """

    __slots__ = ("last", "mark", "owed")

    def __init__(self) -> None:
        super().__init__()
        self.last: Ask | None = None
        self.mark = 0
        self.owed = False

    @property
    def called(self) -> AskGroup | None:
        """The group that left the line last and has not been tried since; None: it was tried."""
        group = self.last.group if self.last is not None else None
        return group if group is not None and group.ready_key is not None else None


class ScopeQueues:
    """The turns of one partition with open proposals, or with groups in line.

    :ivar of: the turns, by their scope.
    :ivar restless: turns with groups in line where a proposal is possible.
    """

    def __init__(self) -> None:
        self.of: dict[What, ExclusiveScope] = {}
        self.restless: dict[ExclusiveScope, None] = {}
        # By group, the turn in whose line it stands, and its key there.
        self._standing: dict[AskGroup, tuple[ExclusiveScope, tuple[int, int, int, int]]] = {}

    def scope_of(self, group: AskGroup) -> ExclusiveScope | None:
        """The turn in whose line the group stands; None: in none."""
        entry = self._standing.get(group)
        return entry[0] if entry is not None else None

    def requeue(self, group: AskGroup) -> None:
        """The oldest ask of a group in line may have changed: moves the group to its place."""
        turn, _ = self._standing[group]
        self.enqueue(group, turn)

    def enqueue(self, group: AskGroup, turn: ExclusiveScope) -> None:
        """Puts a group into its line, at the place of its oldest ask: behind those that had no turn since its last."""
        self.dequeue(group)
        head = group.head()
        assert head is not None, f"{group} has nothing that could wait"
        turns = head.refusals.turn if head.refusals is not None else 0
        key = (turns, -group.priority, head.created_ns, head.submission)
        self._standing[group] = (turn, key)
        group.in_line = True
        insort(turn.line, (*key, group))
        if not turn.closed:
            self.restless[turn] = None

    def dequeue(self, group: AskGroup) -> None:
        """Takes a group out of its line, if it stands in one."""
        if not group.in_line:
            return
        turn, key = self._standing.pop(group)
        spot = bisect_left(turn.line, key)
        assert turn.line[spot][-1] is group, f"{group} is not where its key says"
        del turn.line[spot]
        group.in_line = False
        if not turn.line:
            self.restless.pop(turn, None)
            if not turn.open and self.of.get(turn.what) is turn:
                del self.of[turn.what]
