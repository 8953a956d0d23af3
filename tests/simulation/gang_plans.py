"""The part of a resource manager that has gangs: what an application will ask for, placeholders and real asks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from muster_core.model.application import Application
from muster_core.model.commands import AppItem, AskItem, Command, Termination, UpdateAllocations
from muster_core.partition import Partition
from muster_si.constants import APP_CREATION_TIME_TAG
from simulation.books import SECOND_NS, Amounts
from simulation.speech import OTHER_WORDS, held, stopped

if TYPE_CHECKING:
    from simulation.manager import ResourceManager


@dataclass(slots=True)
class TaskGroup:
    """What an application wants: placeholders of one size, and the real asks for their places."""

    name: str
    size: Amounts
    members: int
    asked: int = 0
    real: int = 0


@dataclass(slots=True)
class Plan:
    """What an application will ask for. ``early``: real asks before the placeholders are there.

    :param ordinary: how many asks of no group; -1: any number.
    """

    groups: list[TaskGroup]
    ordinary: int
    early: bool
    priority: int


class Plans:
    def __init__(self, rm: ResourceManager) -> None:
        self._rm = rm
        self._gangs = rm.dice.choice([0.5, 0.8, 1.0] if rm.simple else [0.2, 0.4, 0.8])
        self._of: dict[str, Plan] = {}
        rm.kinds["stop"] = 1.5
        rm.makers["stop"] = self._stop

    def application(self, item: AppItem) -> AppItem:
        """A new one; perhaps with a gang."""
        rm, dice = self._rm, self._rm.dice
        gang = rm.maybe(self._gangs)
        names = ("driver", "workers")[: dice.choice([1, 1, 2])] if gang else ()
        groups = [TaskGroup(name, rm.amounts(), dice.choice([1, 2, 2, 3, 4])) for name in names]
        ordinary = dice.choice([0, 0, 1, 3]) if gang else dice.randint(1, 5)
        self._of[item.app_id] = Plan(
            groups, ordinary if rm.simple else -1, rm.maybe(0.35), dice.choice([0, 0, 0, 5, 10])
        )
        if not gang:
            return item
        total: Amounts | None = None
        if rm.maybe(0.85):
            total = {}
            for group in groups:
                for kind, value in group.size.items():
                    total[kind] = total.get(kind, 0) + value * group.members
            if rm.maybe(0.08):
                total["vcore"] += dice.choice([-500, 500, 1000])
        tags = {}
        if rm.hosts is None and rm.maybe(0.15):
            created_s = rm.run.now_ns // SECOND_NS + dice.choice([-2000, -30, -5, -1, 0, 50])
            tags[APP_CREATION_TIME_TAG] = str(created_s)
        return AppItem(
            item.app_id,
            item.queue,
            item.partition,
            item.user,
            tags=tags,
            execution_timeout_ms=dice.choice([0, 3_000, 10_000, 10_000, 40_000]) if total or not rm.simple else 0,
            placeholder_ask=total,
            gang_style=dice.choice(["", "Soft", "Soft", "Hard", "Hard"]),
        )

    def has(self, app: Application) -> bool:
        plan = self._of.get(app.app_id)
        return plan is not None and (bool(plan.groups) or plan.ordinary >= 0)

    def waits(self, app: Application) -> bool:
        """Whether its placeholders have not been requested."""
        plan = self._of.get(app.app_id)
        return plan is not None and any(not group.asked for group in plan.groups)

    def ask(self, partition: Partition, app: Application) -> Command | None:
        """Mostly placeholders first, then real asks, then others."""
        rm, dice, plan = self._rm, self._rm.dice, self._of[app.app_id]
        wanting = [group for group in plan.groups if group.asked < group.members]
        if wanting and rm.maybe(0.9):
            return self._ask_placeholders(partition, app, plan, wanting)
        forming = app.gang is not None and app.gang.phase in ("WAITING", "FORMING")
        if plan.groups and not plan.early and forming and rm.maybe(0.9):
            return None
        lacking = [group for group in plan.groups if group.real < group.members + dice.choice([0, 0, 0, 2])]
        if lacking and (not plan.ordinary or rm.maybe(0.8)):
            return self._ask_real(partition, app, plan, dice.choice(lacking))
        if not plan.ordinary:
            plan.ordinary += rm.maybe(0.15)
            return None
        count = dice.randint(1, plan.ordinary) if plan.ordinary > 0 else 1
        plan.ordinary -= count if plan.ordinary > 0 else 0
        return UpdateAllocations([replace(rm.item(partition, app), priority=plan.priority) for _ in range(count)])

    def _ask_placeholders(
        self, partition: Partition, app: Application, plan: Plan, wanting: list[TaskGroup]
    ) -> Command:
        rm, items = self._rm, []
        for group in wanting:
            count = group.members - group.asked
            if rm.maybe(0.12):
                count = rm.dice.randint(1, count)
            group.asked += count
            items += self._items(partition, app, plan, group, group.size, count, placeholder=True)
        return UpdateAllocations(items)

    def _ask_real(self, partition: Partition, app: Application, plan: Plan, group: TaskGroup) -> Command:
        dice = self._rm.dice
        count = dice.randint(1, max(group.members - group.real, 1))
        group.real += count
        size, fate = dict(group.size), dice.random()
        if fate < 0.15:
            size = {kind: max(value // 2, 1) for kind, value in size.items()}
        elif fate < 0.35:
            kind = dice.choice(list(size))
            size[kind] += 500 if kind == "vcore" else 1
        return UpdateAllocations(self._items(partition, app, plan, group, size, count, placeholder=False))

    def _items(
        self,
        partition: Partition,
        app: Application,
        plan: Plan,
        group: TaskGroup,
        size: Amounts,
        count: int,
        *,
        placeholder: bool,
    ) -> list[AskItem]:
        """Asks for members of a task group: one for each, or one with repeats."""
        items = [self._rm.item(partition, app, size) for _ in range(count)]
        first = items[0]
        if first.previous_generation and self._rm.maybe(0.6):
            items = [replace(first, wanted=count)]
        else:
            items = [replace(item, wanted=1) for item in items]
        said = {"task_group": group.name, "placeholder": placeholder, "priority": plan.priority, "quantities": size}
        if placeholder:
            said["tags"] = {}
        return [replace(item, **said) for item in items]

    def _stop(self, partition: Partition, apps: list[Application]) -> Command | None:
        placeholders = [each for each in held(apps) if each.placeholder]
        if not placeholders:
            return None
        each, kind = self._rm.dice.choice(placeholders), Termination.STOPPED_BY_RM
        if self._rm.hosts is None and self._rm.maybe(0.6):
            kind = self._rm.dice.choice(OTHER_WORDS)
        return UpdateAllocations((), [stopped(partition, each, kind)])
