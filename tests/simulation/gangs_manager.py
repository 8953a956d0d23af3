"""A random resource manager with gangs: what it says next, from what it knows (the auditor's books) and dice.

It confirms what is told to go late, twice, in other words, or not at all (then it is told again, and does so).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from muster_scheduler.core.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_scheduler.core.outcome import Fact, ReleasedAllocation
from simulation import gangs_worlds, worlds
from simulation.gangs_auditor import Auditor
from simulation.gangs_books import SECOND_NS, Amounts, Ask, Books, Held
from simulation.gangs_hearing import CREATION_TIME

NODES_MAX, APPS_MAX, HELD_MAX = 8, 6, 40
PARTITION = "default"
ADVANCES = (
    *(0,) * 5,
    1,
    *(SECOND_NS // 2,) * 4,
    *(SECOND_NS,) * 4,
    *(3 * SECOND_NS,) * 3,
    *(7 * SECOND_NS,) * 2,
    *(31 * SECOND_NS,) * 2,
)
# After what is told to go, and is not heard of in time.
LONG_NS = (100 * SECOND_NS, 301 * SECOND_NS, 301 * SECOND_NS, 1000 * SECOND_NS)
KINDS = (
    *("ask",) * 14,
    *("app",) * 4,
    *("end",) * 5,
    *("node",) * 1,
    *("drain",) * 2,
    *("resize",) * 1,
    *("cancel",) * 1,
    *("change",) * 2,
    *("stop",) * 1,
    *("free",) * 3,
    *("press",) * 3,
)
_RARE = ("gone", "reload", "remove", "clear", "fail", "nonsense")
_OTHER_WORDS: tuple[Termination, ...] = (
    Termination.STOPPED_BY_RM,
    Termination.TIMEOUT,
    Termination.PREEMPTED_BY_SCHEDULER,
    Termination.PLACEHOLDER_REPLACED,
    Termination.SCHEDULING_FAILED_ON_RM,
    Termination.UNKNOWN,
)


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
    """What an application will ask for. ``early``: real asks before the placeholders are there."""

    app_id: str
    groups: list[TaskGroup]
    ordinary: int
    size: Amounts
    early: bool
    previous: bool
    priority: int
    may_preempt: bool
    item: AppItem
    number: int = 0


@dataclass(slots=True)
class Due:
    """A confirmation that it owes, and when it comes."""

    step: int
    item: ReleaseItem


class ResourceManager:
    """Makes commands.

    :ivar offered: the configuration that the last UpdateConfiguration carries.
    """

    def __init__(self, dice: random.Random, auditor: Auditor, world: int) -> None:
        self._dice = dice
        self._auditor = auditor
        self._world = world
        self._step = 0
        self._number = 0
        self._plans: dict[str, Plan] = {}
        self._due: list[Due] = []
        self.tally: Counter[str] = auditor.tally
        self.offered: gangs_worlds.Document | None = None
        self._patient = False
        # How this life is.
        self._swallows = dice.choice([0.0, 0.1, 0.3])
        self._slow = dice.choice([1, 2, 6])
        self._gangs = dice.choice([0.5, 0.8, 1.0])
        self._previous = dice.choice([0.0, 0.0, 0.5, 1.0])
        self._preempts = dice.random() < 0.6
        self._calm = dice.random() < 0.35
        self._makers: dict[str, Callable[[Books], Command | None]] = {
            "ask": self._ask,
            "app": self._app,
            "end": self._end,
            "node": self._node,
            "drain": self._drain,
            "resize": self._resize,
            "gone": self._gone,
            "cancel": self._cancel,
            "change": self._change,
            "stop": self._stop,
            "free": self._free,
            "press": self._press,
            "reload": self._reload,
            "remove": self._remove,
            "clear": self._clear,
            "fail": self._fail,
            "nonsense": self._nonsense,
        }

    # ---- hearing ---------------------------------------------------------------------------------------------------

    def hear(self, facts: list[Fact]) -> None:
        """What the core says: placeholders and others that must go are stopped, sooner or later."""
        dice = self._dice
        for fact in facts:
            if not isinstance(fact, ReleasedAllocation) or fact.termination is Termination.STOPPED_BY_RM:
                continue
            app = self._auditor.books.apps.get(fact.app_id)
            held = app.held.get((fact.key, fact.uuid)) if app is not None else None
            if held is None or not held.told:
                continue  # it is the answer to what the RM did
            if not self._patient and dice.random() < self._swallows:
                self.tally["RM: a release was swallowed"] += 1
                continue
            termination: Termination = fact.termination
            if dice.random() < 0.12:
                termination = dice.choice(_OTHER_WORDS)
            late = 0 if self._patient else dice.choice([0, 0, 1, 1, 2, 5, 12]) * self._slow
            uuid = fact.uuid if fact.uuid and (fact.previous_generation or dice.random() < 0.5) else ""
            item = ReleaseItem(PARTITION, fact.app_id, fact.key, termination, uuid)
            self._due.append(Due(self._step + late, item))
            if dice.random() < 0.1:
                self._due.append(Due(self._step + late + dice.choice([0, 1, 3]), item))
                self.tally["RM: a release is confirmed twice"] += 1

    # ---- saying ----------------------------------------------------------------------------------------------------

    def advance_ns(self) -> int:
        """How much later the next step is."""
        dice = self._dice
        return dice.choice(LONG_NS) if dice.random() < 0.012 else dice.choice(ADVANCES)

    def commands(self, report: list[Command] | None) -> Iterator[Command]:
        """What it says in one step; each command is made when the one before was heard.

        :param report: what it says first, after a registration.
        """
        yield from report or self._confirmations()
        for _ in range(self._dice.choice((0, 1, 1, 2, 3))):
            command = self._command()
            if command is not None:
                yield command

    def _confirmations(self) -> list[Command]:
        """What it owes, as far as its time has come: in one message or several."""
        self._step += 1
        due = [each for each in self._due if each.step <= self._step]
        if not due:
            return []
        self._due = [each for each in self._due if each.step > self._step]
        items = [each.item for each in due]
        if self._dice.random() < 0.5:
            return [UpdateAllocations((), tuple(items))]
        return [UpdateAllocations((), (item,)) for item in items]

    def _command(self) -> Command | None:
        """Something else that happens."""
        dice, books = self._dice, self._auditor.books
        if not books.nodes:
            return UpdateNodes(tuple(self._new_node() for _ in range(dice.randint(2, 5))))
        if len(books.apps) < 2:
            return self._app(books)
        kind = dice.choice(KINDS)
        if dice.random() < (0.02 if self._calm else 0.08):
            kind = dice.choice(_RARE)
        return self._makers[kind](books)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _new_node(self) -> NodeItem:
        self._number += 1
        action = NodeAction.CREATE_DRAIN if self._dice.random() < 0.03 else NodeAction.CREATE
        return NodeItem(f"n{self._number}", action, {}, self._capacity(), partition=PARTITION)

    def _capacity(self) -> Amounts:
        dice = self._dice
        found = {"vcore": dice.randint(3, 9) * 1000, "memory": dice.randint(3, 9)}
        if dice.random() < 0.3:
            found["gpu"] = dice.randint(1, 2)
        return found

    def _node(self, books: Books) -> Command | None:
        return UpdateNodes((self._new_node(),)) if len(books.nodes) < NODES_MAX else None

    def _drain(self, books: Books) -> Command | None:
        node = self._dice.choice(list(books.nodes.values()))
        draining = [each for each in books.nodes.values() if not each.schedulable]
        if draining and self._dice.random() < 0.7:
            node = self._dice.choice(draining)
        action = NodeAction.DRAIN_NODE if node.schedulable else NodeAction.DRAIN_TO_SCHEDULABLE
        return UpdateNodes((NodeItem(node.node_id, action, partition=PARTITION),))

    def _resize(self, books: Books) -> Command:
        node_id = self._dice.choice(list(books.nodes))
        return UpdateNodes((NodeItem(node_id, NodeAction.UPDATE, capacity=self._capacity(), partition=PARTITION),))

    def _gone(self, books: Books) -> Command | None:
        if len(books.nodes) < 3:
            return None
        return UpdateNodes(
            (NodeItem(self._dice.choice(list(books.nodes)), NodeAction.DECOMISSION, partition=PARTITION),)
        )

    # ---- applications ----------------------------------------------------------------------------------------------

    def _app(self, books: Books) -> Command | None:
        dice = self._dice
        if len(books.apps) >= APPS_MAX:
            return None
        free = [app_id for number in range(10) if (app_id := f"app{number}") not in books.apps]
        app_id = dice.choice(free)
        gang = dice.random() < self._gangs
        names = ("driver", "workers")[: dice.choice([1, 1, 2])] if gang else ()
        groups = [TaskGroup(name, self._size(), dice.choice([1, 2, 2, 3, 4])) for name in names]
        total: Amounts | None = None
        if gang and dice.random() < 0.85:
            total = {}
            for group in groups:
                for kind, value in group.size.items():
                    total[kind] = total.get(kind, 0) + value * group.members
            if dice.random() < 0.08:
                total["vcore"] += dice.choice([-500, 500, 1000])
        queue = dice.choice([queue.name for queue in books.queues.values() if queue.leaf])
        tags = {}
        if gang and dice.random() < 0.15:
            now_s = self._auditor.now_ns // SECOND_NS
            tags[CREATION_TIME] = str(now_s + dice.choice([-2000, -30, -5, -1, 0, 50]))
        item = AppItem(
            app_id,
            queue,
            PARTITION,
            dice.choice(gangs_worlds.USERS),
            (),
            tags,
            dice.choice([0, 3_000, 10_000, 10_000, 40_000]) if total is not None else 0,
            total,
            dice.choice(["", "Soft", "Soft", "Hard", "Hard"]),
        )
        self._plans[app_id] = Plan(
            app_id,
            groups,
            dice.choice([0, 0, 1, 3]) if gang else dice.randint(1, 5),
            self._size(),
            dice.random() < 0.35,
            dice.random() < self._previous,
            dice.choice([0, 0, 0, 5, 10]),
            self._preempts and dice.random() < 0.7,
            item,
        )
        return UpdateApplications((item,))

    def _size(self) -> Amounts:
        dice = self._dice
        found = {"vcore": dice.choice([500, 1000, 1000, 2000, 3000]), "memory": dice.choice([1, 1, 2, 3])}
        if dice.random() < 0.07:
            found["gpu"] = 1
        if dice.random() < 0.06:
            del found["memory"]
        return found

    def _remove(self, books: Books) -> Command:
        return UpdateApplications((), ((PARTITION, self._dice.choice(list(books.apps))),))

    # ---- asks ------------------------------------------------------------------------------------------------------

    def _ask(self, books: Books) -> Command | None:
        dice = self._dice
        if sum(len(app.held) + len(app.asks) for app in books.apps.values()) > HELD_MAX:
            return self._end(books)
        plans = [self._plans[app_id] for app_id in books.apps]
        plan = dice.choice(plans)
        app = books.apps[plan.app_id]
        wanting = [group for group in plan.groups if group.asked < group.members]
        if wanting and dice.random() < 0.9:
            return self._ask_placeholders(plan, wanting)
        if plan.groups and not plan.early and app.phase in ("WAITING", "FORMING") and dice.random() < 0.9:
            return None
        lacking = [group for group in plan.groups if group.real < group.members + dice.choice([0, 0, 0, 2])]
        if lacking and (not plan.ordinary or dice.random() < 0.8):
            return self._ask_real(plan, dice.choice(lacking))
        if not plan.ordinary:
            if dice.random() < 0.15:
                plan.ordinary += 1
            return None
        count = dice.randint(1, plan.ordinary)
        plan.ordinary -= count
        return UpdateAllocations([self._item(plan, plan.size, "", False) for _ in range(count)])

    def _ask_placeholders(self, plan: Plan, wanting: list[TaskGroup]) -> Command:
        dice = self._dice
        items = []
        for group in wanting:
            count = group.members - group.asked
            if dice.random() < 0.12:
                count = dice.randint(1, count)
            group.asked += count
            if plan.previous and dice.random() < 0.7:
                items.append(self._item(plan, group.size, group.name, True)._replace(wanted=count))
            else:
                items += [self._item(plan, group.size, group.name, True) for _ in range(count)]
        return UpdateAllocations(items)

    def _ask_real(self, plan: Plan, group: TaskGroup) -> Command:
        dice = self._dice
        count = dice.randint(1, max(group.members - group.real, 1))
        group.real += count
        size = dict(group.size)
        fate = dice.random()
        if fate < 0.15:
            size = {kind: max(value // 2, 1) for kind, value in size.items()}
        elif fate < 0.25:
            kind = dice.choice(list(size))
            size[kind] += 500 if kind == "vcore" else 1
        if plan.previous and count > 1 and dice.random() < 0.5:
            return UpdateAllocations([self._item(plan, size, group.name, False)._replace(wanted=count)])
        return UpdateAllocations([self._item(plan, size, group.name, False) for _ in range(count)])

    def _item(self, plan: Plan, size: Amounts, group: str, placeholder: bool) -> AskItem:
        dice = self._dice
        plan.number += 1
        self._number += 1
        return AskItem(
            f"{plan.app_id}-{'p' if placeholder else 'r'}{self._number}",
            plan.app_id,
            PARTITION,
            dict(size),
            1,
            plan.priority,
            {},
            group,
            placeholder,
            False,
            dice.random() < 0.85,
            plan.may_preempt and (not placeholder or plan.number % 3 > 0),
            True,
            0,
            plan.previous,
        )

    def _press(self, books: Books) -> Command | None:
        """More than there is room for, at the cost of others: where something is guaranteed, or with priority."""
        dice = self._dice
        if not self._preempts or sum(len(app.asks) for app in books.apps.values()) > 12:
            return None
        apps = [app for app in books.apps.values() if app.queue.rules is not None and app.queue.rules.guaranteed]
        plan = self._plans[dice.choice(apps or list(books.apps.values())).app_id]
        item = self._item(plan, plan.size, "", False)._replace(allow_preempt_other=True)
        if dice.random() < 0.5:
            item = item._replace(priority=20)
        count = dice.randint(1, 4)
        self._number += count
        return UpdateAllocations([item._replace(key=f"{item.key}.{number}") for number in range(count)])

    def _change(self, books: Books) -> Command | None:
        """An ask is sent again, mostly of another size."""
        dice = self._dice
        asks = [ask for app in books.apps.values() for ask in app.asks.values()]
        leaving = [ask for ask in asks if ask.leaving]
        held = [each for app in books.apps.values() for each in app.held.values()]
        if held and dice.random() < 0.25:
            return self._change_held(dice.choice(held))
        if not asks:
            return None
        ask = dice.choice(leaving if leaving and dice.random() < 0.4 else asks)
        size = dict(ask.said)
        fate = dice.random()
        if fate < 0.4:
            size = {kind: max(value // 2, 1) for kind, value in size.items()}
        elif fate < 0.8:
            kind = dice.choice(list(size))
            size[kind] += 500 if kind == "vcore" else 1
        return UpdateAllocations([_said(ask)._replace(quantities=size)])

    def _change_held(self, held: Held) -> Command:
        """The ask of what runs is sent again, for another size or with another priority."""
        dice = self._dice
        item = _report(held)._replace(node_id="", uuid="", wanted=held.app.made(held.key))
        size = dict(held.said)
        fate = dice.random()
        if fate < 0.4:
            size = {kind: max(value // 2, 1) for kind, value in size.items()}
        elif fate < 0.7:
            kind = dice.choice(list(size))
            size[kind] += 500 if kind == "vcore" else 1
        else:
            item = item._replace(priority=held.priority + 1)
        return UpdateAllocations([item._replace(quantities=size)])

    def _cancel(self, books: Books) -> Command | None:
        dice = self._dice
        asks = [ask for app in books.apps.values() for ask in app.asks.values()]
        leaving = [ask for ask in asks if ask.leaving]
        if not asks:
            return None
        chosen = dice.sample(leaving if leaving and dice.random() < 0.4 else asks, 1)
        return UpdateAllocations((), [_cancelled(ask) for ask in chosen])

    # ---- allocations -----------------------------------------------------------------------------------------------

    def _end(self, books: Books) -> Command | None:
        """Real allocations have done their work."""
        dice = self._dice
        real = [held for app in books.apps.values() for held in app.held.values() if not held.placeholder]
        if not real:
            return None
        return UpdateAllocations((), [_stopped(held) for held in dice.sample(real, min(len(real), dice.randint(1, 4)))])

    def _stop(self, books: Books) -> Command | None:
        """A placeholder is gone by itself."""
        held = [each for app in books.apps.values() for each in app.held.values() if each.placeholder]
        if not held:
            return None
        each = self._dice.choice(held)
        return UpdateAllocations((), [_stopped(each)._replace(termination=self._dice.choice(_OTHER_WORDS))])

    def _free(self, books: Books) -> Command | None:
        """What runs on one node ends: the room that others wait for."""
        node = self._dice.choice(list(books.nodes.values()))
        real = [
            held
            for app in books.apps.values()
            for held in app.held.values()
            if held.node is node and not held.placeholder
        ]
        return UpdateAllocations((), [_stopped(held) for held in real[:5]]) if real else None

    def _fail(self, books: Books) -> Command | None:
        """What the RM could not start."""
        held = [each for app in books.apps.values() for each in app.held.values()]
        if not held:
            return None
        each = self._dice.choice(held)
        return UpdateAllocations((), [_stopped(each)._replace(termination=Termination.SCHEDULING_FAILED_ON_RM)])

    def _clear(self, books: Books) -> Command:
        """All of an application, but not the application."""
        app_id = self._dice.choice(list(books.apps))
        return UpdateAllocations((), [ReleaseItem(PARTITION, app_id, "", Termination.STOPPED_BY_RM)])

    def _nonsense(self, books: Books) -> Command:
        dice = self._dice
        app_id = dice.choice([*books.apps, "nobody"])
        termination = dice.choice(_OTHER_WORDS)
        return UpdateAllocations((), [ReleaseItem(PARTITION, app_id, "unknown", termination)])

    # ---- configuration ---------------------------------------------------------------------------------------------

    def _reload(self, books: Books) -> Command:
        self.offered = gangs_worlds.world(self._world, self._dice.randrange(gangs_worlds.VARIANTS))
        config = worlds.read(worlds.text_of(self.offered))
        assert config is not None
        return UpdateConfiguration(config)

    # ---- another registration --------------------------------------------------------------------------------------

    def report(self, books: Books) -> list[Command]:
        """What it says after it registered anew: nodes, applications, what runs, what is wanted.

        What it owed a confirmation for is gone, or runs on as if nothing had been said.
        """
        dice = self._dice
        gone = {(due.item.app_id, due.item.key) for due in self._due if dice.random() < 0.5}
        self._due = []
        running = [
            held
            for app in books.apps.values()
            for held in app.held.values()
            if (app.app_id, held.key) not in gone and self._plans.get(app.app_id) is not None
        ]
        on_nodes = dice.random() < 0.5
        reports = [_report(held) for held in running]
        commands: list[Command] = []
        nodes = [
            NodeItem(
                node.node_id,
                NodeAction.CREATE if node.schedulable else NodeAction.CREATE_DRAIN,
                {},
                {kind: value for kind, value in zip(("vcore", "memory", "gpu"), node.capacity, strict=True) if value},
                partition=PARTITION,
            )
            for node in books.nodes.values()
        ]
        apps = [self._plans[app_id].item for app_id in books.apps]
        asks = [_said(ask) for app in books.apps.values() for ask in app.asks.values()]
        commands = [UpdateNodes(tuple(nodes)), *(UpdateApplications((item,)) for item in apps)]
        dice.shuffle(reports)
        if on_nodes:
            commands += [UpdateAllocations([item]) for item in reports]
        elif reports:
            commands.append(UpdateAllocations(reports))
        if asks:
            commands.append(UpdateAllocations(asks))
        return commands

    # ---- the end ---------------------------------------------------------------------------------------------------

    def wind_up(self, number: int) -> Iterator[Command]:
        """Left alone: all is confirmed at once, what runs ends, what waits in vain is taken back, nothing new comes."""
        self._patient = True
        books = self._auditor.books
        yield from self._confirmations()
        real = [held for app in books.apps.values() for held in app.held.values() if not held.placeholder]
        if real:
            yield UpdateAllocations((), [_stopped(held) for held in real])
        asks = [ask for app in books.apps.values() for ask in app.asks.values() if not ask.leaving]
        # (Placeholders of a gang that never starts wait for ever, and with them what waits for it to form.)
        waiting = [ask for ask in asks if not ask.placeholder or ask.app.phase in ("WAITING", "USED", "OVER")]
        if waiting and number % 3 == 2:
            yield UpdateAllocations((), [_cancelled(ask) for ask in waiting])
        idle = [app.app_id for app in books.apps.values() if app.state == "New"]
        if idle:
            yield UpdateApplications((), tuple((PARTITION, app_id) for app_id in idle))


def _said(ask: Ask) -> AskItem:
    return AskItem(
        ask.key,
        ask.app.app_id,
        PARTITION,
        dict(ask.said),
        ask.pending + ask.made,
        ask.priority,
        {},
        ask.task_group,
        ask.placeholder,
        False,
        ask.may_go,
        ask.may_preempt,
        True,
        0,
        ask.previous,
    )


def _report(held: Held) -> AskItem:
    return AskItem(
        held.key,
        held.app.app_id,
        PARTITION,
        dict(held.said),
        1,
        held.priority,
        {},
        held.task_group,
        held.placeholder,
        False,
        held.may_go,
        held.may_preempt,
        True,
        0,
        held.previous,
        held.node.node_id,
        held.uuid,
    )


def _cancelled(ask: Ask) -> ReleaseItem:
    return ReleaseItem(PARTITION, ask.app.app_id, ask.key, Termination.STOPPED_BY_RM, ask_only=True)


def _stopped(held: Held) -> ReleaseItem:
    return ReleaseItem(PARTITION, held.app.app_id, held.key, Termination.STOPPED_BY_RM, held.uuid)
