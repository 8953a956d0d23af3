"""A random resource manager: what it says next, from what it knows and dice. One for lives of every kind.

It knows the cluster from the core's own objects: what it says must only be possible, not right. Features add parts to
it: gangs (``gang_plans.py``), answers to predicates (``answering.py``), hosts of others (``hosts.py``); and without
features it says whatever an RM may say (``oddities.py``). It confirms what is told to go late, twice, in other words,
or not at all (then it is told again, and does so). At the end it is patient: it confirms at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from muster_core.model.application import Allocation, Application
from muster_core.model.commands import (
    AppItem,
    AskItem,
    Command,
    EndApplication,
    NodeAction,
    NodeItem,
    ReleaseItem,
    SetSchedulingEnabled,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.outcome import Fact
from muster_core.model.states import APP_TERMINAL
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_si.constants import REQUIRED_NODE_TAG
from simulation import worlds
from simulation.answering import Answering
from simulation.books import SECOND_NS, Amounts, Document
from simulation.external_world import World
from simulation.gang_plans import Plans
from simulation.hosts import Hosts
from simulation.oddities import Oddities
from simulation.speech import (
    OTHER_WORDS,
    asks,
    cancelled,
    confirmed,
    held,
    id_of,
    live,
    reported,
    said,
    stopped,
    submitted,
    told,
)

GANGS, CALLBACKS, EXTERNAL = "gangs", "callbacks", "external"
NODES_MAX, ASKS_MAX, HELD_MAX = 9, 30, 40
# Left alone, a life with gangs has ended after so many steps.
END_STEPS = 80
ADVANCES = (
    *(0,) * 6,
    1,
    *(SECOND_NS // 2,) * 4,
    *(SECOND_NS,) * 4,
    *(2 * SECOND_NS,) * 2,
    *(5 * SECOND_NS,) * 3,
    *(16 * SECOND_NS,) * 2,
    *(31 * SECOND_NS,) * 2,
)
# After what is told to go, and is not heard of in time; and after what is kept for days.
LONG_NS = (100 * SECOND_NS, 301 * SECOND_NS, 301 * SECOND_NS, 1000 * SECOND_NS)
WHOLE_DAYS_NS = 73 * 3600 * SECOND_NS

# How often what is said, in each life; and where nodes and configurations are for the RM to say.
KINDS = {
    "ask": 28.0,
    "app": 8.0,
    "release": 12.0,
    "free": 4.0,
    "press": 6.0,
    "cancel": 3.0,
    "again": 4.0,
    "fail": 2.0,
    "clear": 1.0,
    "remove": 1.0,
}
# How often it says anew in a step how long something runs: anything, and what was backfilled.
_LASTS, _LASTS_LET_IN = 0.03, 0.3
# How often an operator ends an application in a step, where one does.
_ENDS, ENDED = 0.06, "ended by an operator"
KINDS_OF_NODES = {"node": 3.0, "drain": 3.0, "update": 3.0, "gone": 1.0, "reload": 1.5, "nonsense": 1.0}

Maker = Callable[[Partition, list[Application]], Command | None]


class Cluster(Protocol):
    tally: Counter[str]
    now_ns: int
    document: Document

    @property
    def core(self) -> SchedulerCore: ...


class ResourceManager:
    """Makes commands.

    :param features: what is switched on in its life.
    :param turning: dice for taking turns (they came later).
    :param another: makes other configurations.
    :param ends: dice of an operator who ends applications; None: nobody does.
    :param lasting: dice for saying anew how long something runs, where asks are backfilled; None: it never does.
    :param world: the hosts that it shares with other managers; None: the nodes are its own.

    :ivar offered: the configuration that the last UpdateConfiguration carries.
    :ivar patient: the end: it confirms and agrees at once.
    :ivar simple: only gangs are looked at: it says nothing else that is remarkable.
    """

    def __init__(
        self,
        dice: random.Random,
        turning: random.Random,
        run: Cluster,
        features: Collection[str],
        *,
        another: Callable[[], Document] | None = None,
        ends: random.Random | None = None,
        lasting: random.Random | None = None,
        world: World | None = None,
    ) -> None:
        self.dice = dice
        self.run = run
        self.tally = run.tally
        self.number = 0
        self.offered: Document | None = None
        self.patient = False
        self.simple = set(features) == {GANGS}
        self._another = another
        self._ends, self._lasting = ends, lasting
        self._step = 0
        self._deciding = True
        self._due: dict[tuple[str, str, int], int] = {}
        self._twice: list[ReleaseItem] = []
        # How this life is: shapes that come again and again, how it confirms, how much of it preempts.
        self._swallows = dice.choice([0.0, 0.1, 0.3])
        self._slow = dice.choice([0, 1, 1, 2, 6])
        self._previous = dice.choice([0.0, 0.0, 0.5, 1.0]) if world is None else 0.0
        self.preempts = dice.random() < 0.7
        self._large_nodes = dice.random() < 0.3
        self._apps_max = dice.choice([6, 6, 12]) if features and not self.simple else 6
        self._says = (0, 1, 1, 2, 3) if features else (0, 1, 2, 3, 4)
        self.kinds = dict(KINDS)
        self.makers: dict[str, Maker] = {
            "ask": self.ask,
            "app": self._app,
            "release": self._release,
            "free": self._free,
            "press": self.press,
            "cancel": self._cancel,
            "again": self._again,
            "fail": self._fail,
            "clear": self._clear,
            "remove": self._remove,
            "node": self._node,
            "drain": self._drain,
            "update": self._update,
            "gone": self._gone,
            "reload": self._reload,
            "nonsense": self._nonsense,
            "adopt": self._adopt,
            "decide": self._decide,
        }
        self.odd = Oddities(self) if not features else None
        self.shapes = [self.amounts() for _ in range(dice.randint(2, 5))]
        self.hosts = Hosts(self, world) if world is not None else None
        if world is None:
            self.kinds |= KINDS_OF_NODES
        elif CALLBACKS not in features:
            del self.kinds["fail"]  # (two of one container in one batch are not written down twice)
        if world is None and not self.simple:
            self.kinds |= {"adopt": 3.0, "decide": 1.5}
        self.plans = Plans(self) if features and set(features) != {EXTERNAL} else None
        self.answering = Answering(self, turning) if CALLBACKS in features else None

    def maybe(self, chance: float) -> bool:
        return self.dice.random() < chance

    # ---- what an RM does in a life ---------------------------------------------------------------------------------

    def advance_ns(self) -> int:
        """The time until the next step."""
        if self.odd is not None and self.maybe(0.004):
            return WHOLE_DAYS_NS
        return self.dice.choice(LONG_NS if self.maybe(0.01) else ADVANCES)

    def hear(self, facts: list[Fact]) -> None:
        """It is told this. (Of asks and allocations it knows from the core.)"""
        if self.answering is not None:
            self.answering.hear(facts)

    def commands(self, report: list[Command] | None) -> Iterator[Command]:
        """What it says in one step; each command is made when the one before was taken.

        :param report: what it says first, after a registration.
        """
        yield from report or self.confirmations()
        if self.answering is not None:
            yield from self.answering.begins(report)
        for _ in range(self.dice.choice(self._says)):
            command = self._command()
            if command is not None:
                yield command
        if self._ends is not None and self._ends.random() < _ENDS:
            yield self._end(self._ends)
        if self._lasting is not None and (command := self._lasts(self._lasting)) is not None:
            yield command

    def answers(self) -> Iterator[Command]:
        if self.answering is not None:
            yield from self.answering.answers()

    def _command(self) -> Command | None:
        dice = self.dice
        partition = dice.choice(list(self.run.core.partitions.values()))
        if not partition.nodes and self.hosts is None:
            return UpdateNodes(tuple(self.new_node(partition) for _ in range(dice.randint(1, 4))))
        apps = self.apps(partition)
        if len(apps) < 2:
            return self._app(partition, apps)
        if not self._deciding and self.maybe(0.3):
            return self._decide(partition, apps)
        (kind,) = dice.choices(list(self.kinds), list(self.kinds.values()))
        return self.makers[kind](partition, apps)

    def apps(self, partition: Partition) -> list[Application]:
        return live(partition) if self.odd is None or self.maybe(0.9) else list(partition.apps.values())

    def report(self) -> list[Command]:
        """What it will say after it registered anew. What was told to go is gone, or runs on."""
        dice = self.dice
        (partition,) = self.run.core.partitions.values()
        apps = live(partition)
        running = [each for each in held(apps) if not each.source and (not each.releasing or self.stays(each))]
        items = [reported(partition, each) for each in running]
        dice.shuffle(items)
        wanted = [said(partition, ask) for ask in asks(apps)]
        submissions = [submitted(partition, app) for app in apps]
        found: list[Command] = self._report_nodes(partition) if self.hosts is None else self.hosts.report(partition)
        found += [UpdateApplications((item,)) for item in submissions[::2]]
        found.append(UpdateApplications(tuple(submissions[1::2])))
        found += [UpdateAllocations([item]) for item in items] if self.maybe(0.5) else [UpdateAllocations(items)]
        self._due.clear()
        self._twice.clear()
        if self.answering is not None:
            self.answering.forget()
        return [*found, UpdateAllocations(wanted)]

    def stays(self, each: Allocation) -> bool:
        """It was told to go, and runs on as if nothing had been said."""
        return self.maybe(0.5) and self.answering is None

    def _report_nodes(self, partition: Partition) -> list[Command]:
        nodes = [
            NodeItem(
                node.node_id,
                NodeAction.CREATE if node.schedulable else NodeAction.CREATE_DRAIN,
                dict(node.attributes),
                capacity=partition.types.quantities(node.capacity),
                partition=partition.name,
            )
            for node in partition.nodes.values()
        ]
        return [UpdateNodes(tuple(nodes))]

    def wind_up(self) -> list[Command]:
        partition = self._partition
        apps = live(partition)
        gone = UpdateAllocations((), [stopped(partition, each) for each in held(apps)])
        return [gone, UpdateApplications((), tuple((partition.name, app.app_id) for app in apps))]

    def ending(self) -> Iterator[tuple[int | None, Iterable[Command]]]:
        """Left alone, to the end: what it says, and how much later than before; None: at the next deadline."""
        self.patient = True
        if self.answering is not None:
            yield from self.answering.ending()
        elif self.simple:
            for number in range(END_STEPS):
                if not any(app.state not in APP_TERMINAL for app in self._partition.apps.values()):
                    break
                yield (SECOND_NS, 31 * SECOND_NS, None, 900 * SECOND_NS)[number % 4], self._wind_up(number)

    @property
    def _partition(self) -> Partition:
        return self.run.core.partitions["default"]

    def _wind_up(self, number: int) -> Iterator[Command]:
        """Ends running allocations and withdraws asks that cannot fit, without new ones."""
        partition = self._partition
        yield from self.confirmations()
        real = [each for each in held(live(partition)) if not each.placeholder]
        if real:
            yield UpdateAllocations((), [stopped(partition, each) for each in real])
        # (Placeholders of a gang that never starts wait for ever, and with them what waits for it to form.)
        waiting = [
            ask
            for ask in asks(live(partition))
            if not ask.awaits_placeholders
            and (
                not ask.placeholder or (ask.app.gang is not None and ask.app.gang.phase in ("WAITING", "USED", "OVER"))
            )
        ]
        if waiting and number % 3 == 2:
            yield UpdateAllocations((), [cancelled(partition, ask) for ask in waiting])
        idle = [app.app_id for app in live(partition) if app.state == "New"]
        if idle:
            yield UpdateApplications((), tuple((partition.name, app_id) for app_id in idle))

    # ---- confirmations ---------------------------------------------------------------------------------------------

    def confirmations(self) -> list[Command]:
        """What it owes, as far as its time has come: in one message or several."""
        self._step += 1
        items, self._twice = self._twice, []
        for partition in self.run.core.partitions.values():
            for each in told(partition):
                if self._step >= self._due_at(each):
                    items.append(self._confirmation(partition, each))
        if not items:
            return []
        if self.maybe(0.5):
            return [UpdateAllocations((), tuple(items))]
        return [UpdateAllocations((), (item,)) for item in items]

    def _due_at(self, each: Allocation) -> int:
        """In which step it confirms; decided once, and anew after a reminder."""
        about = (each.app_id, each.unique_key, each.reminder_ns)
        if self.patient:
            return 0
        if about not in self._due:
            late = self.dice.choice([0, 0, 1, 1, 2, 5, 12]) * self._slow
            if self.maybe(self._swallows):
                self.tally["RM: a release was swallowed"] += 1
                late = 1 << 30
            self._due[about] = self._step + late
        return self._due[about]

    def _confirmation(self, partition: Partition, each: Allocation) -> ReleaseItem:
        item = confirmed(partition, each)
        if self.hosts is None:
            if self.maybe(0.12):
                item = item._replace(termination=self.dice.choice(OTHER_WORDS))
            if self.maybe(0.5) and not each.previous_generation:
                item = item._replace(uuid="")
            if self.maybe(0.1):
                self._twice.append(item)
                self.tally["RM: a release is confirmed twice"] += 1
        return item

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def new_node(self, partition: Partition, node_id: str = "") -> NodeItem:
        self.number += 1
        item = NodeItem(
            node_id or f"{partition.name[0]}n{self.number}",
            NodeAction.CREATE_DRAIN if self.maybe(0.05) else NodeAction.CREATE,
            {},
            capacity=self._capacity(),
            partition=partition.name,
        )
        return item if self.odd is None else self.odd.node(partition, item)

    def _capacity(self) -> Amounts:
        dice = self.dice
        most = 20 if self._large_nodes and not self.simple else 9
        found = {"vcore": dice.randint(3, most) * 1000, "memory": dice.randint(3, most)}
        if self.maybe(0.3):
            found["gpu"] = dice.randint(1, 3)
        return found if self.odd is None else self.odd.capacity(found)

    def some_node(self, partition: Partition) -> str:
        """A node; rather one that is kept free for somebody."""
        kept = [node.node_id for node in partition.nodes.values() if node.reservations]
        if kept and self.maybe(0.4):
            return self.dice.choice(kept)
        return self.dice.choice(list(partition.nodes))

    def _node(self, partition: Partition, apps: list[Application]) -> Command | None:
        if len(partition.nodes) >= NODES_MAX and self.odd is None:
            return None
        known = self.some_node(partition) if self.maybe(0.08) else ""
        return UpdateNodes((self.new_node(partition, known),))

    def _drain(self, partition: Partition, apps: list[Application]) -> Command:
        node = partition.nodes[self.some_node(partition)]
        draining = [each for each in partition.nodes.values() if not each.schedulable]
        if draining and self.maybe(0.6):
            node = self.dice.choice(draining)
        drains = node.schedulable if not self.maybe(0.1) else not node.schedulable
        action = NodeAction.DRAIN_NODE if drains else NodeAction.DRAIN_TO_SCHEDULABLE
        return UpdateNodes((NodeItem(node.node_id, action, partition=partition.name),))

    def _update(self, partition: Partition, apps: list[Application]) -> Command:
        node_id, fate = self.some_node(partition), self.dice.random()
        capacity: Amounts | None = None
        occupied: Amounts | None = None
        attributes: dict[str, str] = {}
        if fate < 0.5 or self.simple:
            capacity = self._capacity()
        elif fate < 0.75:
            occupied = self.amounts()
        elif self.odd is not None:
            node_id, attributes = self.odd.attributes(partition, node_id)
        else:
            attributes = {"label": str(self.dice.randint(0, 9))}
        item = NodeItem(
            node_id, NodeAction.UPDATE, attributes, capacity=capacity, occupied=occupied, partition=partition.name
        )
        return UpdateNodes((item,))

    def _gone(self, partition: Partition, apps: list[Application]) -> Command | None:
        if self.simple and len(partition.nodes) < 3:
            return None
        node_id = self.some_node(partition)
        gone = NodeItem(node_id, NodeAction.DECOMISSION, partition=partition.name)
        return UpdateNodes((gone, self.new_node(partition, node_id)) if self.maybe(0.3) else (gone,))

    # ---- configuration, decisions ----------------------------------------------------------------------------------

    def _reload(self, partition: Partition, apps: list[Application]) -> Command:
        assert self._another is not None
        self.offered = self._another()
        config = worlds.read(worlds.text_of(self.offered))
        assert config is not None
        return UpdateConfiguration(config)

    def _decide(self, partition: Partition, apps: list[Application]) -> Command:
        self._deciding = not self._deciding or self.maybe(0.5)
        return SetSchedulingEnabled(self._deciding)

    # ---- applications ----------------------------------------------------------------------------------------------

    def _app(self, partition: Partition, apps: list[Application]) -> Command | None:
        if self.odd is not None:
            return self.odd.applications(partition)
        leaves = [queue.path for queue in partition.queues.values() if queue.leaf and queue.managed]
        if len(apps) >= self._apps_max or not leaves:
            return None
        self.number += 1
        app_id = f"app{self.number}"
        if self.simple:  # an id comes again
            app_id = self.dice.choice([each for n in range(10) if (each := f"app{n}") not in partition.apps or n > 8])
        item = AppItem(app_id, self.dice.choice(leaves), partition.name, self.dice.choice(worlds.USERS[:3]))
        return UpdateApplications((item if self.plans is None else self.plans.application(item),))

    def _remove(self, partition: Partition, apps: list[Application]) -> Command:
        return UpdateApplications((), ((partition.name, self.dice.choice(apps).app_id),))

    def _end(self, dice: random.Random) -> Command:
        """An operator ends an application, or one that is not there, ends already, or is not the RM's."""
        partition = dice.choice(list(self.run.core.partitions.values()))
        app_ids = list(partition.apps) if dice.random() < 0.2 else [app.app_id for app in live(partition)]
        app_id = dice.choice(app_ids) if app_ids and dice.random() < 0.95 else "nobody"
        return EndApplication(partition.name, app_id, f"{ENDED}: by number {dice.randint(1, 9)}")

    def _clear(self, partition: Partition, apps: list[Application]) -> Command:
        app_id = id_of(self.dice.choice(apps))
        return UpdateAllocations((), [ReleaseItem(partition.name, app_id, "", Termination.STOPPED_BY_RM)])

    # ---- asks ------------------------------------------------------------------------------------------------------

    def ask(self, partition: Partition, apps: list[Application]) -> Command | None:
        if self.odd is None and (len(asks(apps)) > ASKS_MAX or len(asks(apps)) + len(held(apps)) > HELD_MAX):
            return self._release(partition, apps)
        app = self.dice.choice(apps)
        if self.plans is not None and self.plans.has(app):
            return self.plans.ask(partition, app)
        count = self.dice.choice([1, 1, 2, 4])
        return UpdateAllocations([self.item(partition, app) for _ in range(count)])

    def item(self, partition: Partition, app: Application, size: Amounts | None = None) -> AskItem:
        dice = self.dice
        self.number += 1
        size = size if size is not None else dice.choice(self.shapes) if self.maybe(0.75) else self.amounts()
        previous = self.maybe(self._previous)
        nodes = list(partition.nodes) if self.hosts is None else list(self.hosts.world.hosts)
        tags = {REQUIRED_NODE_TAG: dice.choice(nodes)} if not self.simple and nodes and self.maybe(0.07) else {}
        item = AskItem(
            f"k{self.number}",
            id_of(app),
            partition.name,
            dict(size),
            wanted=dice.randint(2, 5) if previous and self.maybe(0.5) else 1,
            priority=dice.choice([0, 0, 0, 0, 5, 10, -5]),
            tags=tags,
            allow_preempt_self=self.maybe(0.8),
            allow_preempt_other=self.preempts and self.maybe(0.7),
            has_preemption_policy=True,
            previous_generation=previous,
        )
        if self.hosts is not None:
            item = self.hosts.item(item)
        if self.answering is not None:
            item = self.answering.item(item)
        return item if self.odd is None else self.odd.item(partition, app, item)

    def amounts(self) -> Amounts:
        dice = self.dice
        found = {"vcore": dice.choice([500, 1000, 1000, 2000, 3000, 4000]), "memory": dice.choice([1, 1, 2, 3, 4])}
        if self.maybe(0.08):
            found["gpu"] = 1
        if self.maybe(0.06):
            del found["memory"]
        return found if self.odd is None else self.odd.amounts(found)

    def press(self, partition: Partition, apps: list[Application]) -> Command | None:
        """More than there is room for, at the cost of others: where something is guaranteed, or with priority."""
        dice = self.dice
        if self.odd is None and len(asks(apps)) > 12:
            return None
        favoured = [app for app in apps if app.queue.guaranteed]
        app = dice.choice(favoured if favoured and self.maybe(0.7) else apps)
        if self.plans is not None and self.plans.waits(app):
            return None
        item = replace(self.item(partition, app), wanted=1, allow_preempt_other=self.preempts)
        if self.maybe(0.3):
            item = replace(item, priority=20)
        count = dice.randint(1, 4) if self.odd is None else dice.randint(4, 10)
        return UpdateAllocations([replace(item, key=f"{item.key}.{number}") for number in range(count)])

    def _again(self, partition: Partition, apps: list[Application]) -> Command | None:
        """An ask is sent again: another size, other words, or word for word; or the ask of what runs."""
        dice = self.dice
        running, waiting = held(apps), asks(apps)
        if running and self.hosts is None and self.maybe(0.25):
            each = dice.choice(running)
            assert each.app is not None
            item = replace(said(partition, each), wanted=each.app.allocated_count(each.key))
        elif waiting:
            awaited = [ask for ask in waiting if ask.awaits_placeholders]
            item = said(partition, dice.choice(awaited if awaited and self.maybe(0.4) else waiting))
        else:
            return None
        app = partition.apps.get(item.app_id)
        size, fate = dict(item.quantities), dice.random()
        if fate < 0.3:
            size = {kind: max(value // 2, 1) for kind, value in size.items()}
        elif fate < 0.65 and size:
            kind = dice.choice(list(size))
            size[kind] += 500 if kind == "vcore" else 1
        elif fate < 0.7:
            item = replace(item, priority=item.priority + 1)
        elif fate < 0.8 and item.previous_generation:
            item = replace(item, wanted=max(item.wanted + dice.choice([-1, 1]), 1))
        elif fate < 0.9 and app is not None and not item.task_group and not self.simple:
            other = self.item(partition, app, size)
            kept = {"key": item.key, "wanted": item.wanted, "previous_generation": item.previous_generation}
            item = replace(other, **kept)
        if self.odd is not None:
            size = self.odd.size_again(item, size)
        return UpdateAllocations([replace(item, quantities=size)])

    def _cancel(self, partition: Partition, apps: list[Application]) -> Command | None:
        waiting = asks(apps)
        awaited = [ask for ask in waiting if ask.awaits_placeholders]
        if not waiting:
            return None
        among = awaited if awaited and self.maybe(0.4) else waiting
        chosen = self.dice.sample(among, min(len(among), self.dice.choice([1, 1, 1, 3])))
        items = [cancelled(partition, ask) for ask in chosen]
        if self.odd is not None and self.maybe(0.3):
            items = [item._replace(app_id="") for item in items]
        return UpdateAllocations((), items)

    # ---- allocations -----------------------------------------------------------------------------------------------

    def _release(self, partition: Partition, apps: list[Application]) -> Command | None:
        running = [
            each for each in held(apps) if not each.placeholder and not (each.releasing and self.hosts is not None)
        ]
        if not running:
            return None
        chosen = self.dice.sample(running, min(len(running), self.dice.randint(1, 4)))
        items = [stopped(partition, each) for each in chosen]
        return UpdateAllocations((), items if self.odd is None else self.odd.releases(items))

    def _free(self, partition: Partition, apps: list[Application]) -> Command | None:
        """Ends all allocations on one node."""
        if not partition.nodes:
            return None
        node_id = self.some_node(partition)
        on = [each for each in held(apps) if each.node_id == node_id and not each.placeholder and not each.releasing]
        return UpdateAllocations((), [stopped(partition, each) for each in on[:5]]) if on else None

    def _fail(self, partition: Partition, apps: list[Application]) -> Command | None:
        running = held(apps)
        if not running:
            return None
        item = stopped(partition, self.dice.choice(running), Termination.SCHEDULING_FAILED_ON_RM)
        return UpdateAllocations((), [item])

    def _adopt(self, partition: Partition, apps: list[Application]) -> Command | None:
        """Something runs already: what was asked for, what is known to run, or what was never heard of."""
        dice = self.dice
        app = dice.choice(apps)
        item = self.item(partition, app)
        if app.asks and self.maybe(0.5):
            item = said(partition, dice.choice(list(app.asks.values())))
        elif app.allocations and self.odd is not None and self.maybe(0.4):
            item = said(partition, dice.choice(list(app.allocations.values())))
        item = replace(item, node_id=self.some_node(partition), wanted=1)
        return UpdateAllocations([item if self.odd is None else self.odd.adopted(partition, item)])

    def _lasts(self, dice: random.Random) -> Command | None:
        """What runs lasts for longer than was said, for less, or nobody knows: in a report, or in its ask again. It may
        be larger or smaller, too. Rather something that was backfilled.
        """
        found = [
            (partition, each)
            for partition in self.run.core.partitions.values()
            if partition.root.backfills
            for each in held(live(partition))
            if not each.placeholder
        ]
        let_in = [pair for pair in found if pair[1].backfilled is not None]
        if not found or dice.random() > (_LASTS_LET_IN if let_in else _LASTS):
            return None
        partition, each = dice.choice(let_in if let_in and dice.random() < 0.8 else found)
        item = reported(partition, each)
        if dice.random() < 0.35 and each.app is not None:
            item = replace(item, node_id="", uuid="", wanted=each.app.allocated_count(each.key))
        size = dict(item.quantities)
        if dice.random() < 0.25 and size.get("vcore") and not item.key.startswith("shared"):
            size["vcore"] = dice.choice([size["vcore"] + 500, max(size["vcore"] // 2, 1)])
        ms = dice.choice([0, 0, 400, 9_000, 60_000, 600_000])
        return UpdateAllocations([replace(item, quantities=size, execution_timeout_ms=ms)])

    def _nonsense(self, partition: Partition, apps: list[Application]) -> Command:
        if self.odd is not None:
            return self.odd.nonsense(partition)
        app_id = self.dice.choice([*(app.app_id for app in apps), "nobody"])
        return UpdateAllocations((), [ReleaseItem(partition.name, app_id, "unknown", self.dice.choice(OTHER_WORDS))])
