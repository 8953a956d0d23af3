"""Whether limits have room for a whole gang, and which limit is too small for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_core.config.properties import PreemptionPolicy
from muster_core.model.queue import Ledger, Tracker

if TYPE_CHECKING:
    from muster_core.model.application import Application
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.queue import Queue
    from muster_core.model.resources import Vector


class GangHeadroom:
    """The room that the limits of one partition leave to gangs that start as a whole."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def blocking_limit(self, app: Application) -> tuple[Ledger, int, int] | None:
        """The first limit without room for the whole gang, after subtracting the promises to other gangs.

        Returns the limit's ledger, the number of the resource type, and the gang's amount of that type; None: there is
        room.
        """
        total = app.gang.total if app.gang is not None else None
        for ledger in app.bounds if total is not None else ():
            used, limit, promised = ledger.allocated, ledger.limit, ledger.promised
            for number, value in total.items if total is not None else ():
                if used[number] + promised.get(number, 0) + value > limit[number] and value > self.guaranteed_headroom(
                    app.queue, ledger, number
                ):
                    return ledger, number, value
        return None

    @staticmethod
    def unsatisfiable_limit(app: Application) -> tuple[Ledger, int, int] | None:
        """The first limit that is smaller than the whole gang, even with nothing in use.

        Returns the limit's ledger, the number of the resource type, and the gang's amount; None: no limit is smaller.

        (Root's limit does not count: it is the capacity of the cluster, which may grow.)
        """
        total = app.gang.total if app.gang is not None else None
        for ledger in (*app.trackers, *app.queue.line) if total is not None else ():
            for number, value in total.items if total is not None else ():
                if value > ledger.limit[number]:
                    return ledger, number, value
        return None

    def smaller_limit(self, ledger: Ledger, number: int, requested: int) -> str:
        """The result of :meth:`unsatisfiable_limit` as a sentence."""
        whose = f"the max of queue {ledger.path}"
        if isinstance(ledger, Tracker):
            whose = f"the limit of {'group' if ledger.group else 'user'} {ledger.who} in queue {ledger.path}"
        name = self._state.types.names[number]
        return f"the placeholderAsk {name}:{requested} is larger than {whose}, {name}:{ledger.limit[number]}"

    def guaranteed_headroom(self, leaf: Queue, ledger: Ledger, number: int) -> int:
        """The amount of a type that a gang may start with by its queue's guarantee, although the limit above is full.

        Other queues then use the guaranteed amount. The gang's placeholders get it back by preemption, one by one.
        """
        if not self._state.config.preemption.enabled or isinstance(ledger, Tracker):
            return 0
        for queue in leaf.line:
            if queue is ledger or queue.policy.preemption is PreemptionPolicy.FENCE:
                return 0
            least = (queue.guaranteed or {}).get(number)
            if least is not None:
                return least - queue.allocated[number] - queue.promised.get(number, 0)
        return 0

    def headroom(self, leaf: Queue, ledger: Ledger) -> Vector:
        """The amounts, by type number, with which gangs of the leaf may start, as far as this ledger limits them."""
        promised, owed = ledger.promised, self.guaranteed_headroom
        return [
            max(most - used - promised.get(number, 0), owed(leaf, ledger, number))
            for number, (most, used) in enumerate(zip(ledger.limit, ledger.allocated, strict=True))
        ]
