"""The lines of applications that wait as a whole at a ledger: to be among the running ones, or for room for a gang.

In leaves whose order does not begin with priority, each line is kept by priority, too: the most urgent application
counts for its leaf although others come before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

from muster_core.model.wait_points import GangQueues

if TYPE_CHECKING:
    from muster_core.model.application import Application
    from muster_core.model.queue import Ledger, Queue
    from muster_core.model.resources import Shape, Vector


class ApplicationLines:
    """The lines of one partition. (Those for a place among the running applications are ``Ledger.waiting_apps``.)

    :ivar gangs: by ledger, and by leaf, the gangs that wait there for room for the whole gang.
    """

    def __init__(self) -> None:
        self.gangs: dict[Ledger, dict[Queue, GangQueues[Application]]] = {}
        self._urgent_gangs: dict[tuple[Ledger, Queue], GangQueues[Application]] = {}
        self._urgent_apps: dict[tuple[Ledger, Queue], Any] = {}

    def stand_in(self, app: Application, ledger: Ledger) -> None:
        """Puts the application into its line at the ledger."""
        leaf, key = app.queue, app.waiting_key
        if not app.waits_whole:
            ledger.waiting_apps.add((*key, app))
            if not leaf.priority_first:
                self._urgent_apps.setdefault((ledger, leaf), SortedList()).add((*_urgency(key), app))
            return
        total = _total(app)
        self.gangs.setdefault(ledger, {}).setdefault(leaf, GangQueues()).add(total, key, app)
        if not leaf.priority_first:
            self._urgent_gangs.setdefault((ledger, leaf), GangQueues()).add(total, _urgency(key), app)

    def stand_out(self, app: Application, ledger: Ledger) -> None:
        """Takes the application out of its line at the ledger."""
        leaf, key = app.queue, app.waiting_key
        if not app.waits_whole:
            ledger.waiting_apps.remove((*key, app))
            if not leaf.priority_first:
                urgent = self._urgent_apps[ledger, leaf]
                urgent.remove((*_urgency(key), app))
                if not urgent:
                    del self._urgent_apps[ledger, leaf]
            return
        total, by_leaf = _total(app), self.gangs[ledger]
        by_leaf[leaf].remove(total, key, app)
        if not by_leaf[leaf]:
            del by_leaf[leaf]
            if not by_leaf:
                del self.gangs[ledger]
        if not leaf.priority_first:
            self._urgent_gangs[ledger, leaf].remove(total, _urgency(key), app)
            if not self._urgent_gangs[ledger, leaf]:
                del self._urgent_gangs[ledger, leaf]

    def more_urgent(self, app: Application, ledger: Ledger, room: Vector | None = None) -> Application | None:
        """The most urgent application in line at the ledger and in the leaf of this one, if it is more urgent.

        :param room: of those whose gangs fit into this; None: of those that wait for a place among the running ones.
        """
        key = (ledger, app.queue)
        if room is None:
            line = self._urgent_apps.get(key)
            candidate = line[0][-1] if line is not None else None
        else:
            gangs = self._urgent_gangs.get(key)
            candidate = gangs.first(room) if gangs is not None else None
        return (
            candidate if candidate is not None and candidate.ready and candidate.ready[0][0] < app.ready[0][0] else None
        )


def key_of(app: Application) -> tuple[int, int, int, int]:
    """The application's place in a line. The last value is its priority, whether or not this comes first."""
    priority = app.ready[0][0] if app.ready else 0
    return (priority if app.queue.priority_first else 0, app.submitted_ns, app.submission, priority)


def _urgency(key: tuple[int, ...]) -> tuple[int, ...]:
    return (key[-1], *key)


def _total(app: Application) -> Shape:
    """The amounts that the application's gang needs as a whole."""
    assert app.gang is not None, f"{app} has no gang"
    assert app.gang.total is not None, f"{app.gang} starts as it comes"
    return app.gang.total
