"""Which partitions this scheduler runs and follows, as a state machine: the group's shares and the workers' ends in,
actions out. Pure: time is an argument.

Each partition is in one state. The columns say what happens; ``→`` is the next state.

=========  ====================  ====================  ==================  ==================  =====================
state      the share: owner      the share: standby    the share: neither  its worker ended    its worker was fenced
=========  ====================  ====================  ==================  ==================  =====================
IDLE       OWN → OWNING          FOLLOW → FOLLOWING    –                   –                   –
FOLLOWING  OWN → OWNING          –                     DROP → IDLE         –                   –
OWNING     –                     RELEASE → RELEASING   RELEASE → RELEASING → IDLE, then as     REJOIN → FENCED, or as
                                                                           the share says      the share says
RELEASING  –                     –                     –                   → IDLE, then as     → IDLE, then as the
                                                                           the share says      share says
FENCED     OWN → OWNING, once    FOLLOW → FOLLOWING    → IDLE              –                   –
           the wait is over
=========  ====================  ====================  ==================  ==================  =====================

The reasons:

- An owner goes on through every change of the group that leaves it the partition. A release is a drain: the worker
  commits what it has applied.
- A fenced worker of a partition that the group still gives to this member means that the next share is under way, or
  that somebody outside of the group owns it (``scheduler.partitions``). So the member asks for a new share, and takes
  the partition again only after a wait that grows. Two schedulers that fence each other would never finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class PartitionPhase(StrEnum):
    """The state of a partition in this process."""

    IDLE = "idle"
    FOLLOWING = "following"
    OWNING = "owning"
    RELEASING = "releasing"
    FENCED = "fenced"


class AssignedRole(StrEnum):
    """What the newest share says about a partition."""

    NONE = "none"
    STANDBY = "standby"
    OWNER = "owner"


class ActionKind(StrEnum):
    """The kinds of actions. OWN takes the standby of the partition with it, if there is one."""

    FOLLOW = "follow"
    DROP = "drop"
    OWN = "own"
    RELEASE = "release"
    REJOIN = "rejoin"


class OwnershipAction(NamedTuple):
    """What the caller does now."""

    do: ActionKind
    partition: int


@dataclass(slots=True)
class _Entry:
    holding: PartitionPhase = PartitionPhase.IDLE
    role: AssignedRole = AssignedRole.NONE
    since_s: float = 0.0  # it owns
    fences: int = 0  # in a row
    until_s: float = 0.0  # it does not take the partition again


class Ownership:
    """See the module's docstring.

    :param wait_first_s: wait after the first fencing; it doubles with each further one.
    :param wait_limit_s: longest wait. An ownership that lasted longer ends the row.
    """

    def __init__(self, wait_first_s: float = 1.0, wait_limit_s: float = 60.0) -> None:
        self._wait_first_s, self._wait_limit_s = wait_first_s, wait_limit_s
        self._entries: dict[int, _Entry] = {}

    # ---- in ----------------------------------------------------------------------------------------------------------

    def on_assignment(self, owned: Iterable[int], standbys: Iterable[int], now_s: float) -> list[OwnershipAction]:
        """Takes a share of the group. What this process gives up comes first."""
        roles = {**dict.fromkeys(standbys, AssignedRole.STANDBY), **dict.fromkeys(owned, AssignedRole.OWNER)}
        for partition in roles:
            self._entries.setdefault(partition, _Entry())
        actions: list[OwnershipAction] = []
        for partition, entry in sorted(self._entries.items()):
            entry.role = roles.get(partition, AssignedRole.NONE)
            actions += self._follow_role(partition, entry, now_s)
        return sorted(actions, key=lambda action: action.do not in (ActionKind.RELEASE, ActionKind.DROP))

    def on_worker_ended(self, partition: int, now_s: float, *, fenced: bool) -> list[OwnershipAction]:
        """Takes the end of a partition's worker: it was released, or fenced."""
        entry = self._entries[partition]
        was, entry.holding = entry.holding, PartitionPhase.IDLE
        if not fenced or was is PartitionPhase.RELEASING or entry.role is not AssignedRole.OWNER:
            entry.fences = 0
            return self._follow_role(partition, entry, now_s)
        entry.fences = 1 if now_s - entry.since_s > self._wait_limit_s else entry.fences + 1
        wait_s = min(self._wait_limit_s, self._wait_first_s * 2 ** min(entry.fences - 1, 20))
        entry.holding, entry.until_s = PartitionPhase.FENCED, now_s + wait_s
        return [OwnershipAction(ActionKind.REJOIN, partition)]

    def on_time(self, now_s: float) -> list[OwnershipAction]:
        """Takes the time: waits that are over."""
        actions: list[OwnershipAction] = []
        for partition, entry in sorted(self._entries.items()):
            if entry.holding is PartitionPhase.FENCED:
                actions += self._follow_role(partition, entry, now_s)
        return actions

    # ---- out ---------------------------------------------------------------------------------------------------------

    def next_due_s(self) -> float | None:
        """Returns when ``due`` has something to do; None: never."""
        waits = [entry.until_s for entry in self._entries.values() if entry.holding is PartitionPhase.FENCED]
        return min(waits, default=None)

    def holding(self, partition: int) -> PartitionPhase:
        """Returns a partition's state."""
        return self._entries[partition].holding if partition in self._entries else PartitionPhase.IDLE

    def partitions_in(self, *holdings: PartitionPhase) -> list[int]:
        """Returns the partitions in these states."""
        return sorted(partition for partition, entry in self._entries.items() if entry.holding in holdings)

    def _follow_role(self, partition: int, entry: _Entry, now_s: float) -> list[OwnershipAction]:
        match entry.holding, entry.role:
            case ((PartitionPhase.IDLE | PartitionPhase.FOLLOWING), AssignedRole.OWNER):
                return self._own(partition, entry, now_s)
            case PartitionPhase.FENCED, AssignedRole.OWNER if now_s >= entry.until_s:
                return self._own(partition, entry, now_s)
            case ((PartitionPhase.IDLE | PartitionPhase.FENCED), AssignedRole.STANDBY):
                entry.holding = PartitionPhase.FOLLOWING
                return [OwnershipAction(ActionKind.FOLLOW, partition)]
            case PartitionPhase.FOLLOWING, AssignedRole.NONE:
                entry.holding = PartitionPhase.IDLE
                return [OwnershipAction(ActionKind.DROP, partition)]
            case PartitionPhase.FENCED, AssignedRole.NONE:
                entry.holding = PartitionPhase.IDLE
            case PartitionPhase.OWNING, (AssignedRole.STANDBY | AssignedRole.NONE):
                entry.holding = PartitionPhase.RELEASING
                return [OwnershipAction(ActionKind.RELEASE, partition)]
            case _:
                pass
        return []

    def _own(self, partition: int, entry: _Entry, now_s: float) -> list[OwnershipAction]:
        entry.holding, entry.since_s = PartitionPhase.OWNING, now_s
        return [OwnershipAction(ActionKind.OWN, partition)]
