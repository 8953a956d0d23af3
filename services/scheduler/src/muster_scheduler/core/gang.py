"""What one gang is (seed 003): the placeholders of an application, how far they are, and whom they hold back.

What is not in the records (who is free, who is held back, what is promised) follows from what is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_si.constants import APP_CREATION_TIME_TAG

from muster_scheduler.core.placeholders import FreePlaceholders
from muster_scheduler.core.reasons import Reason, ReasonCode
from muster_scheduler.core.states import PLACEHOLDER_TIMEOUT_NS, GangPhase

if TYPE_CHECKING:
    from muster_scheduler.core.inquiries import Inquiry
    from muster_scheduler.core.objects import Application, Ask, AskGroup, Demand
    from muster_scheduler.core.resources import Shape

HARD = "hard"
_TIMEOUT_NS_MIN = 1_000_000


class TaskGroup:
    """The placeholders of one name. ``asked = pending + held + replaced + timed_out + lost`` at all times.

    :ivar shape: of its first placeholder.
    :ivar asked: how many placeholders there were in all.
    :ivar pending: asked for, not allocated. ``held``: allocated and on the books.
    :ivar free: those held that were not told to go, oldest first.
    :ivar lost: preempted, taken back by the RM, or gone with their node.
    """

    __slots__ = ("asked", "free", "held", "lost", "name", "pending", "replaced", "shape", "timed_out")

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape
        self.asked = self.pending = self.held = 0
        self.replaced = self.timed_out = self.lost = 0
        self.free = FreePlaceholders()

    def __repr__(self) -> str:
        return f"TaskGroup({self.name})"


class Gang:
    """The placeholders of one application.

    :ivar total: the placeholderAsk: what they will take in all; None: the application did not say.
    :ivar deadline_ns: when the time of unused placeholders is up; 0: the clock does not run.
    :ivar taken: by type number, what placeholders hold; ``placed``: the part of it that is not going for nothing.
    :ivar promised: the part of ``total`` that is not placed, while it forms; counted in its limits' ``promised``.
    :ivar proposed: by type number, what placeholders would take that the RM is being asked about.
    :ivar courted: by (unique) key, placeholders that would make room for a real ask if the RM agrees: not free now.
    :ivar replacing: by key of a real ask, the (unique) keys of the placeholders that are leaving for it.
    :ivar reals: by task group ("": none), the groups of real asks.
    :ivar stuck: groups whose asks could take a placeholder's place, but fit on no node now.
    """

    __slots__ = (
        "app",
        "courted",
        "deadline_ns",
        "groups",
        "phase",
        "placed",
        "promised",
        "proposed",
        "reals",
        "replacing",
        "stuck",
        "taken",
        "total",
    )

    def __init__(self, app: Application, total: Shape | None) -> None:
        self.app = app
        self.total = total
        self.phase = GangPhase.WAITING
        self.deadline_ns = 0
        self.groups: dict[str, TaskGroup] = {}
        self.taken: dict[int, int] = {}
        self.placed: dict[int, int] = {}
        self.promised: dict[int, int] = {}
        self.proposed: dict[int, int] = {}
        self.courted: dict[str, Inquiry] = {}
        self.replacing: dict[str, dict[str, None]] = {}
        self.reals: dict[str, dict[AskGroup, None]] = {}
        self.stuck: dict[AskGroup, None] = {}
        for group in app.groups.values():
            self.take(group)

    @property
    def whole(self) -> bool:
        """It starts when there is room for all of it, and its real asks wait until it is formed."""
        return self.total is not None and self.app.queue.policy.whole_gangs

    @property
    def waits_for_room(self) -> bool:
        """It has not started: first there must be room for all of it."""
        return self.phase is GangPhase.WAITING and self.whole and not self.proposed

    @property
    def is_complete(self) -> bool:
        """Placeholders hold what was announced."""
        total = self.total
        return total is not None and all(self.placed.get(number, 0) >= value for number, value in total.items)

    @property
    def is_hard(self) -> bool:
        """Without its placeholders the application is not to run (gangSchedulingStyle)."""
        return self.app.gang_style.lower() == HARD

    @property
    def still_to_take(self) -> dict[int, int]:
        """By type number, what was announced and is not placed, while it forms as a whole: that is promised to it."""
        started = self.phase is GangPhase.FORMING or (self.phase is GangPhase.WAITING and self.proposed)
        if not started or not self.whole or self.total is None:
            return {}
        placed, proposed = self.placed, self.proposed
        rest = {number: value - placed.get(number, 0) - proposed.get(number, 0) for number, value in self.total.items}
        return {number: value for number, value in rest.items() if value > 0}

    def oldest_pending(self, task_group: str) -> Ask | None:
        """Of its pending placeholder asks, the first that was asked for: an order that a fold finds again."""
        alike = (each for each in self.app.groups.values() if each.placeholder and each.task_group == task_group)
        heads = (head for each in alike if (head := each.head()) is not None)
        return min(heads, key=lambda ask: (ask.created_ns, ask.submission), default=None)

    @property
    def held(self) -> int:
        """How many placeholders are on the books, those told to go too."""
        return sum(group.held for group in self.groups.values())

    @property
    def counts_as_running(self) -> bool:
        """While it forms, it counts against the maxima of applications (core-features §2.10)."""
        return self.phase in (GangPhase.FORMING, GangPhase.FORMED)

    def task_group(self, demand: Demand) -> TaskGroup:
        """The task group of a placeholder; a new one when there is none."""
        found = self.groups.get(demand.task_group)
        if found is None:
            self.groups[demand.task_group] = found = TaskGroup(demand.task_group, demand.shape)
        return found

    def take(self, group: AskGroup) -> None:
        """A group of the application is new."""
        if not group.placeholder:
            self.reals.setdefault(group.task_group, {})[group] = None

    def drop(self, group: AskGroup) -> None:
        """A group of the application is no more."""
        self.stuck.pop(group, None)
        same = self.reals.get(group.task_group)
        if same is not None and group in same:
            del same[group]
            if not same:
                del self.reals[group.task_group]

    # ---- who is held back, and why ---------------------------------------------------------------------------------

    def holds(self, group: AskGroup) -> bool:
        """Whether real asks must wait for placeholders, neither ready nor parked."""
        if group.placeholder:
            return False
        if self.whole and self.phase in (GangPhase.WAITING, GangPhase.FORMING):
            return True
        return group in self.stuck or self._awaits(self.groups.get(group.task_group))

    def _awaits(self, own: TaskGroup | None) -> bool:
        """Whether placeholders that are asked for hold back the real asks of their task group.

        With ``gang.start: incremental`` only, and only while the placeholders' time runs: where the gang was formed
        once, the seed lets a real ask that finds no placeholder go the normal way.
        """
        if own is None or not own.pending or own.free or self.whole:
            return False
        return self.phase not in (GangPhase.USED, GangPhase.OVER) or self.deadline_ns > 0

    def gives_way_to(self, group: AskGroup) -> bool:
        """Whether placeholders are there whose places these asks may take."""
        own = self.groups.get(group.task_group) if not group.placeholder else None
        if own is None or not own.free:
            return False
        return not group.required_node or own.free.on(group.required_node)

    def hold_reason(self, group: AskGroup) -> Reason | None:
        """Why the gang holds these asks back; None: it does not."""
        if group.placeholder:
            return None
        own = self.groups.get(group.task_group)
        if self.whole and self.phase in (GangPhase.WAITING, GangPhase.FORMING):
            incomplete = own if own is not None and own.pending else None
            if incomplete is None:
                incomplete = next((each for each in self.groups.values() if each.pending), None)
            if incomplete is None:
                return self._not_announced(_since_ns(group))
            return self._incomplete(incomplete, _since_ns(group))
        if own is None:
            return None
        if self.gives_way_to(group):
            first = next(own.free.covering(group.shape), None) or own.free.first()
            return Reason(
                ReasonCode.PLACEHOLDER_STUCK,
                task_group=own.name,
                placeholder=first.key,
                node=first.node_id,
                since_ns=_since_ns(group),
            )
        return self._incomplete(own, _since_ns(group)) if self._awaits(own) else None

    def _incomplete(self, group: TaskGroup, since_ns: int) -> Reason:
        oldest = self.oldest_pending(group.name)
        because = oldest.reason if oldest is not None else None
        return Reason(
            ReasonCode.GANG_FORMING,
            task_group=group.name,
            placed=group.held,
            members=group.held + group.pending,
            because=because,
            since_ns=since_ns,
        )

    def _not_announced(self, since_ns: int) -> Reason:
        """Everything asked for is placed, and it is less than was announced."""
        assert self.total is not None, "only announced gangs form as a whole"
        names = self.app.queue.types.names
        for number, value in self.total.items:
            placed = self.placed.get(number, 0)
            if placed < value:
                return Reason(
                    ReasonCode.GANG_FORMING, resource_type=names[number], asked=value, used=placed, since_ns=since_ns
                )
        return Reason(ReasonCode.GANG_FORMING, since_ns=since_ns)

    def leaving_reason(self, ask: Ask) -> Reason | None:
        """Why an ask waits for which placeholders were told to go; None: there are none."""
        found = [self.app.allocations.get(key) for key in self.replacing.get(ask.demand.key, ())]
        leaving = [held for held in found if held is not None]
        if not leaving:
            return None
        placeholder = min(leaving, key=lambda held: (held.told_ns, held.allocated_ns, held.submission, held.ordinal))
        return Reason(
            ReasonCode.PLACEHOLDER_LEAVING,
            task_group=placeholder.task_group,
            placeholder=placeholder.key,
            node=placeholder.node_id,
            since_ns=placeholder.told_ns,
        )

    def __repr__(self) -> str:
        return f"Gang({self.app.app_id}, {self.phase})"


def _since_ns(group: AskGroup) -> int:
    """Since when the first of the group's asks is there: its gang has held it from then on."""
    head = group.head()
    return head.created_ns if head is not None else 0


def timeout_ns(app: Application) -> int:
    """How long the application's placeholders may wait, from the first one's allocation on.

    The application's own time-out, else the default. One that was created before the RM said so (it restarted) has
    waited already: the tag ``yunikorn.apache.org/creationTime`` (seconds since the epoch) tells since when.
    """
    own_ms = app.execution_timeout_ms if app.placeholder_ask is not None else 0
    whole_ns = own_ms * 1_000_000 if own_ms > 0 else PLACEHOLDER_TIMEOUT_NS
    text = app.tags.get(APP_CREATION_TIME_TAG, "")
    submitted_ns = app.story[0][0] if app.story else 0
    if text.isascii() and text.isdigit() and len(text) <= 12 and 0 < int(text) * 1_000_000_000 <= submitted_ns:
        return max(int(text) * 1_000_000_000 + whole_ns - submitted_ns, _TIMEOUT_NS_MIN)
    return whole_ns
