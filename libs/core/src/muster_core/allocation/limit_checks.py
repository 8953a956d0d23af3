"""Finds the limit that stops an ask or an application, and describes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from muster_core.model.queue import Ledger, Tracker
from muster_core.model.reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from muster_core.gangs.gang_headroom import GangHeadroom
    from muster_core.model.application import Application, Ask
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.resources import Shape
    from muster_core.nodes.pools import Pools


class LimitChecks:
    """Checks the limits of one partition; changes nothing."""

    def __init__(self, state: PartitionState, *, room: GangHeadroom, pools: Pools) -> None:
        self._state = state
        self._room = room
        self._pools = pools

    def full_ledger(self, app: Application) -> Ledger | None:
        """The first ledger that allows no further running application, so that this one cannot start: user and group
        first, then queues.
        """
        if app.counted or app.independent:
            return None
        for ledger in app.ledgers:
            if ledger.is_full:
                return ledger
        return None

    def blocking_gang_limit(self, app: Application) -> tuple[Ledger, int, int] | None:
        """The limit that keeps the application's gang from starting; None: there is none, or the gang has started."""
        gang = app.gang
        return self._room.blocking_limit(app) if gang is not None and gang.waits_for_room else None

    def exceeded_limit(self, app: Application, shape: Shape) -> tuple[Ledger, int, int] | None:
        """The first limit that one more ask of the shape would exceed: (ledger, type number, amount of the type in the
        shape).
        """
        items = shape.items
        for ledger in app.bounds:
            used, limit = ledger.allocated, ledger.limit
            for number, value in items:
                if used[number] + value > limit[number]:
                    return ledger, number, value
        return None

    def is_limited(self, ask: Ask) -> bool:
        """Whether a limit stops the ask, whether or not a node has room."""
        app = ask.app
        if self.full_ledger(app) is not None or self.blocking_gang_limit(app) is not None:
            return True
        return self.exceeded_limit(app, ask.demand.shape) is not None

    def limit_reason(self, ledger: Ledger, number: int, value: int) -> Reason:
        """The reason for waiting at the limit that :meth:`exceeded_limit` found."""
        code = ReasonCode.QUEUE_MAX
        if isinstance(ledger, Tracker):
            code = ReasonCode.GROUP_LIMIT if ledger.group else ReasonCode.USER_LIMIT
        name = self._state.types.names[number]
        pool_reason = self._pools.block_reason(name) if ledger is self._state.root else ""
        used, limit = ledger.allocated[number], ledger.limit[number]
        return Reason(code, ledger.path, name, value, used, limit, who=ledger.who, said=pool_reason)

    def room_reason(self, ledger: Ledger, number: int, value: int) -> Reason:
        """The reason for a gang's waiting at the limit that :meth:`blocking_gang_limit` found."""
        return replace(
            self.limit_reason(ledger, number, value),
            code=ReasonCode.GANG_ROOM,
            promised=ledger.promised.get(number, 0),
            of_group=isinstance(ledger, Tracker) and ledger.group,
        )
