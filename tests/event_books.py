"""The ledger of docs/events.md: what events add up to, kept by arithmetic of its own, and compared with what is shown.

It hears events as they are on the wire (numbers of ``si.v1``), nothing else, and keeps one sum for each figure of an
application, queue, node, user and group. No sum is ever negative; what leaves, leaves with nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster_proto.si.v1 import si_pb2 as si

Amounts = Mapping[str, int]
Sums = dict[Any, Counter[str]]

_E = si.EventRecord
_APP, _NODE, _QUEUE, _USERGROUP = _E.APP, _E.NODE, _E.QUEUE, _E.USERGROUP
_SET, _ADD, _REMOVE = _E.SET, _E.ADD, _E.REMOVE
# The ledger: (figure, sign) by (type, change, detail). APP_ALLOC stands in two figures.
ASKED, HELD, ON_NODE, CAPACITY, KEPT = "pending", "allocated", "allocated on node", "capacity", "reserved"
BY_USER, BY_GROUP = "used by user", "used by group"
LEDGER: Mapping[tuple[int, int, int], tuple[tuple[str, int], ...]] = {
    (_APP, _ADD, _E.APP_REQUEST): ((ASKED, 1),),
    (_APP, _REMOVE, _E.APP_REQUEST): ((ASKED, -1),),
    (_APP, _REMOVE, _E.REQUEST_CANCEL): ((ASKED, -1),),
    (_APP, _REMOVE, _E.REQUEST_TIMEOUT): ((ASKED, -1),),
    (_APP, _ADD, _E.APP_ALLOC): ((ASKED, -1), (HELD, 1)),
    **{
        (_APP, _REMOVE, detail): ((HELD, -1),)
        for detail in (_E.ALLOC_CANCEL, _E.ALLOC_PREEMPT, _E.ALLOC_TIMEOUT, _E.ALLOC_REPLACED, _E.ALLOC_NODEREMOVED)
    },
    (_NODE, _ADD, _E.NODE_ALLOC): ((ON_NODE, 1),),
    (_NODE, _REMOVE, _E.NODE_ALLOC): ((ON_NODE, -1),),
    (_NODE, _ADD, _E.DETAILS_NONE): ((CAPACITY, 1),),
    (_NODE, _REMOVE, _E.NODE_DECOMISSION): ((CAPACITY, -1),),
    (_NODE, _ADD, _E.NODE_RESERVATION): ((KEPT, 1),),
    (_NODE, _REMOVE, _E.NODE_RESERVATION): ((KEPT, -1),),
    (_USERGROUP, _ADD, _E.UG_USER_RESOURCE): ((BY_USER, 1),),
    (_USERGROUP, _REMOVE, _E.UG_USER_RESOURCE): ((BY_USER, -1),),
    (_USERGROUP, _ADD, _E.UG_GROUP_RESOURCE): ((BY_GROUP, 1),),
    (_USERGROUP, _REMOVE, _E.UG_GROUP_RESOURCE): ((BY_GROUP, -1),),
}
_JOINS, _LEAVES = (_QUEUE, _ADD, _E.QUEUE_APP), (_QUEUE, _REMOVE, _E.QUEUE_APP)
_RESIZED, _OCCUPIED = (_NODE, _SET, _E.NODE_CAPACITY), (_NODE, _SET, _E.NODE_OCCUPIED)
_CAME, _GONE = (_NODE, _ADD, _E.DETAILS_NONE), (_NODE, _REMOVE, _E.NODE_DECOMISSION)
# An event carries no larger amount (int64): one that was larger says this, and its type can no longer be added up.
_SATURATED = 2**63 - 1


class UnevenBooks(AssertionError):
    """Raised if the sums of events differ from what is shown, or are impossible."""


@dataclass(slots=True)
class Shown:
    """What is shown at a moment, in the figures of the ledger. Zeros may be there or not.

    :ivar figures: by figure: of applications, nodes by id; of users and groups by (name, queue's path).
    :ivar queues: (allocated, pending) by path, those below included.
    :ivar members: (queue's path, application).
    """

    figures: dict[str, Sums] = field(default_factory=lambda: {name: {} for name in FIGURES})
    occupied: Sums = field(default_factory=dict)
    queues: dict[str, tuple[Counter[str], Counter[str]]] = field(default_factory=dict)
    members: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, figure: str, key: Any, amounts: Amounts) -> None:
        _add(self.figures[figure], key, amounts, 1)


FIGURES = (ASKED, HELD, ON_NODE, CAPACITY, KEPT, BY_USER, BY_GROUP)


class EventBooks:
    """Sums of all events so far.

    :ivar heard: how many events.
    """

    def __init__(self) -> None:
        self.figures: dict[str, Sums] = {name: {} for name in FIGURES}
        self.occupied: Sums = {}
        self.members: Counter[tuple[str, str]] = Counter()
        self.nodes: Counter[str] = Counter()
        self.heard = 0
        self._saturated: set[str] = set()  # types of which an event could not carry its amount
        self._twins: set[str] = set()  # nodes whose id is in two partitions: what is SET is one's, nobody knows whose

    # ---- events ----------------------------------------------------------------------------------------------------

    def take_record(self, record: si.EventRecord) -> None:
        """One event as it is on the wire."""
        amounts = {name: quantity.value for name, quantity in record.resource.resources.items()}
        self.take(
            record.type,
            record.eventChangeType,
            record.eventChangeDetail,
            record.objectID,
            record.referenceID,
            amounts,
        )

    def take(self, kind: int, change: int, detail: int, about: str, reference: str, amounts: Amounts) -> None:
        """One event, by the numbers of its type, change and detail."""
        self.heard += 1
        what = (kind, change, detail)
        for figure, sign in LEDGER.get(what, ()):
            sums, key = self.figures[figure], (about, reference) if kind == _USERGROUP else about
            left = sums.get(key)
            if left is None:
                left = sums[key] = Counter()
            for name, value in amounts.items():
                left[name] += sign * value
                if value >= _SATURATED:
                    self._saturated.add(name)
                if value < 0 or (left[name] < 0 and key not in self._twins and name not in self._saturated):
                    raise UnevenBooks(f"{figure} of {key}: {dict(left)} after {self._words(what)} {reference} {value}")
        if what == _JOINS:
            self.members[about, reference] += 1
        elif what == _LEAVES:
            self.members[about, reference] -= 1
            self._left(reference)
        elif kind == _NODE:
            self._take_node(what, about, amounts)

    def _take_node(self, what: tuple[int, int, int], node_id: str, amounts: Amounts) -> None:
        if what == _CAME:
            self.nodes[node_id] += 1
            if self.nodes[node_id] > 1:
                self._twins.add(node_id)
        elif what == _RESIZED:
            self.figures[CAPACITY][node_id] = Counter(amounts)
        elif what == _OCCUPIED:
            self.occupied[node_id] = Counter(amounts)
        elif what == _GONE:
            self.nodes[node_id] -= 1
            if not self.nodes[node_id]:
                self.occupied.pop(node_id, None)
                self._twins.discard(node_id)
                for figure in (ON_NODE, CAPACITY, KEPT):
                    self._nothing_left(figure, node_id)

    def _left(self, app_id: str) -> None:
        """Removes an application from its queue (two partitions may have the id)."""
        if not any(count for (_, member), count in self.members.items() if member == app_id):
            for figure in (ASKED, HELD):
                self._nothing_left(figure, app_id)

    def _nothing_left(self, figure: str, key: str) -> None:
        amounts = self.figures[figure].pop(key, Counter())
        left = {name: value for name, value in amounts.items() if value and name not in self._saturated}
        if left:
            raise UnevenBooks(f"{key} is gone, and {figure} is still {left}")

    @staticmethod
    def _words(what: tuple[int, int, int]) -> str:
        kind, change, detail = what
        return f"{_E.Type.Name(kind)} {_E.ChangeType.Name(change)} {_E.ChangeDetail.Name(detail)}"  # type: ignore[arg-type]

    # ---- what is shown ---------------------------------------------------------------------------------------------

    def compare(self, shown: Shown) -> None:
        """Raises UnevenBooks if the sums differ from what is shown."""
        for figure in FIGURES:
            but = self._twins if figure == CAPACITY else ()
            self._same(figure, self.figures[figure], shown.figures[figure], but=but)
        self._same("occupied", self.occupied, shown.occupied, but=self._twins)
        members = +self.members
        if members != +shown.members:
            raise UnevenBooks(f"QUEUE_APP says {members - shown.members}, shown is {shown.members - members}")
        self._compare_queues(shown)

    def _compare_queues(self, shown: Shown) -> None:
        """A queue has what the applications have that QUEUE_APP put into it, or into one below."""
        if len({app for _, app in +self.members}) < sum((+self.members).values()):
            return  # two partitions have an application of one id: its sums are of both
        allocated: Sums = {}
        pending: Sums = {}
        for path, app_id in +self.members:
            for above in ancestry(path):
                _add(allocated, above, self.figures[HELD].get(app_id, {}), 1)
                _add(pending, above, self.figures[ASKED].get(app_id, {}), 1)
        self._same("allocated in queue", allocated, {path: each[0] for path, each in shown.queues.items()})
        self._same("pending in queue", pending, {path: each[1] for path, each in shown.queues.items()})

    def _same(
        self, figure: str, said: Mapping[Any, Amounts], shown: Mapping[Any, Amounts], *, but: Collection[Any] = ()
    ) -> None:
        for key in {**said, **shown}:
            if key in but:
                continue
            left, right = (
                {name: value for name, value in each.get(key, {}).items() if value and name not in self._saturated}
                for each in (said, shown)
            )
            if left != right:
                raise UnevenBooks(f"{figure} of {key}: events add up to {left}, shown is {right}")


def ancestry(path: str) -> Iterable[str]:
    """A queue's path and those above it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _add(sums: Sums, key: Any, amounts: Amounts, sign: int) -> None:
    found = sums.get(key)
    if found is None:
        found = sums[key] = Counter()
    for name, value in amounts.items():
        found[name] += sign * value
