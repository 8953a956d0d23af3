"""A random resource manager: what it says next, from what it knows (the auditor's books) and dice."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from muster_scheduler.core.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    SetDeciding,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from simulation import worlds
from simulation.books import SECOND_NS, BookedAllocation, BookedApp, Books
from simulation.hearing import REQUIRED_NODE, Hearing

ADVANCES = (
    *(0,) * 6,
    *(1,) * 2,
    *(SECOND_NS // 2,) * 3,
    *(SECOND_NS,) * 3,
    *(2 * SECOND_NS,) * 3,
    *(5 * SECOND_NS,) * 3,
    *(16 * SECOND_NS,) * 3,
    *(31 * SECOND_NS,) * 2,
    61 * SECOND_NS,
)
BUDGETS = (1, 3, *(1 << 30,) * 5)
_GPU_MILLI = "nvidia.com/gpu-milli"
WHOLE_DAYS_NS = 73 * 3600 * SECOND_NS

KINDS = (
    *("ask",) * 16,
    *("app",) * 6,
    *("node",) * 4,
    *("release",) * 8,
    *("confirm",) * 5,
    *("pressure",) * 4,
    *("claim",) * 3,
    *("drain",) * 2,
    *("resize",) * 2,
    *("ready",) * 2,
    *("again",) * 2,
    *("adopt",) * 2,
    *("foreign",) * 2,
    *("configuration",) * 2,
    *("release_ask",) * 2,
    "gone",
    "end",
    "occupied",
    "nonsense",
    "decide",
    "swap",
)


class ResourceManager:
    """Makes commands.

    :ivar offered: the configuration that the last UpdateConfiguration carries, as a dictionary.
    """

    def __init__(self, dice: random.Random, hearing: Hearing) -> None:
        self._dice = dice
        self._hearing = hearing
        self._next = 0
        self._deciding = True
        # How this life is: a few shapes that come again and again, and how much of it preempts.
        self._shapes = [self._amounts(1, 7) for _ in range(dice.randint(2, 5))]
        self._preempting = dice.random() < 0.6
        self._repeats = dice.random() < 0.4
        self._shared_keys = dice.random() < 0.1
        self._short_lived = dice.random() < 0.3
        self._large_nodes = dice.random() < 0.3
        self.offered: worlds.Document | None = None
        self._makers: dict[str, Callable[[Books], Command]] = {
            "app": self._app,
            "node": self._node,
            "confirm": self._confirm,
            "pressure": self._pressure,
            "claim": self._claim,
            "drain": self._drain,
            "resize": self._resize,
            "ready": self._ready,
            "foreign": self._foreign,
            "gone": self._gone,
            "end": self._end,
            "occupied": self._occupied,
            "nonsense": self._nonsense,
            "swap": self._swap,
        }
        self._makers_for_app: dict[str, Callable[[Books, BookedApp], Command | None]] = {
            "ask": self._ask,
            "release": self._release,
            "again": self._again,
            "adopt": self._adopt,
            "release_ask": self._release_ask,
        }

    def commands(self) -> Iterator[Command]:
        """What it says in one step; each command is made when the one before was heard."""
        for _ in range(self._dice.randint(0, 4)):
            yield self.command()

    def advance_ns(self) -> int:
        """How much later the next step is."""
        if self._dice.random() < 0.004:
            return WHOLE_DAYS_NS
        return self._dice.choice(ADVANCES)

    def command(self) -> Command:
        """The next command."""
        dice = self._dice
        self._next += 1
        books = dice.choice(list(self._hearing.books.values()))
        kind = dice.choice(KINDS)
        if self._next < 8 and not self._deciding:
            self._deciding = True
            return SetDeciding(True)
        if not books.nodes:
            return UpdateNodes(tuple(self._new_node(books, number) for number in range(dice.randint(1, 4))))
        if kind == "decide" or (not self._deciding and dice.random() < 0.3):
            self._deciding = not self._deciding if dice.random() < 0.5 or not self._deciding else True
            return SetDeciding(self._deciding)
        if kind == "configuration":
            return self._configuration()
        if kind in self._makers:
            return self._makers[kind](books)
        apps = list(books.apps.values())
        if not apps:
            return self._app(books)
        made = self._makers_for_app[kind](books, dice.choice(apps))
        return made if made is not None else self._ask(books, dice.choice(apps))

    # ---- configuration ---------------------------------------------------------------------------------------------

    def _configuration(self) -> Command:
        while True:
            self.offered = worlds.another(self._dice, self._hearing.document)
            config = worlds.read(worlds.text_of(self.offered))
            if config is not None:  # else a rule names what is not there any more
                return UpdateConfiguration(config)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _node(self, books: Books) -> Command:
        if self._dice.random() < 0.1:
            return UpdateNodes((self._new_node(books, 0, node_id=self._dice.choice(list(books.nodes))),))
        return UpdateNodes((self._new_node(books, 0),))

    def _new_node(self, books: Books, number: int, *, node_id: str = "") -> NodeItem:
        dice = self._dice
        existing: list[AskItem] = []
        apps = list(books.apps.values())
        if apps and dice.random() < 0.15:
            existing.append(self._item(dice.choice(apps), f"x{self._next}-{number}"))
        return NodeItem(
            node_id or f"{books.name[0]}n{self._next}-{number}",
            NodeAction.CREATE_DRAIN if dice.random() < 0.06 else NodeAction.CREATE,
            {"si/instance-type": dice.choice(["small", "large"])} if dice.random() < 0.3 else {},
            self._capacity(),
            self._amounts(0, 2) if dice.random() < 0.1 else None,
            tuple(existing),
            books.name if books.name != "default" or dice.random() < 0.8 else dice.choice(["", "DEFAULT"]),
        )

    def _capacity(self) -> dict[str, int]:
        dice = self._dice
        most = 24 if self._large_nodes else 12
        found = {"vcore": dice.randint(4, most) * 1000, "memory": dice.randint(4, most)}
        if dice.random() < 0.35:
            found["gpu"] = dice.randint(1, 4)
        if dice.random() < 0.1:
            found[_GPU_MILLI] = 1000 * dice.randint(1, 4)
        if dice.random() < 0.05:
            found["disk"] = dice.randint(1, 9)
        return found

    def _drain(self, books: Books) -> Command:
        action = self._dice.choice([NodeAction.DRAIN_NODE, NodeAction.DRAIN_TO_SCHEDULABLE])
        return UpdateNodes((NodeItem(self._some_node(books), action, partition=books.name),))

    def _resize(self, books: Books) -> Command:
        return UpdateNodes(
            (NodeItem(self._some_node(books), NodeAction.UPDATE, capacity=self._capacity(), partition=books.name),)
        )

    def _ready(self, books: Books) -> Command:
        """Other attributes; among them, or alone, whether the node is ready."""
        dice = self._dice
        said = {"ready": dice.choice(["true", "true", "false"])}
        if dice.random() < 0.3:
            said = {"si/rackname": dice.choice(["r1", "r2"]), **(said if dice.random() < 0.5 else {})}
        if dice.random() < 0.05:
            said["ready"] = "perhaps"
        node_id = self._some_node(books)
        unready = [node.node_id for node in books.nodes.values() if not node.ready]
        if unready and dice.random() < 0.5:
            node_id, said = dice.choice(unready), {"ready": "true"}
        return UpdateNodes((NodeItem(node_id, NodeAction.UPDATE, said, partition=books.name),))

    def _gone(self, books: Books) -> Command:
        return UpdateNodes((NodeItem(self._some_node(books), NodeAction.DECOMISSION, partition=books.name),))

    def _occupied(self, books: Books) -> Command:
        amounts = self._amounts(0, 3)
        item = NodeItem(self._some_node(books), NodeAction.UPDATE, occupied=amounts, partition=books.name)
        return UpdateNodes((item,))

    def _some_node(self, books: Books) -> str:
        """A node; rather one that is kept free for somebody."""
        kept = [node.node_id for node in books.nodes.values() if node.reservations]
        if kept and self._dice.random() < 0.4:
            return self._dice.choice(kept)
        return self._dice.choice(list(books.nodes))

    # ---- applications ----------------------------------------------------------------------------------------------

    def _app(self, books: Books) -> Command:
        return UpdateApplications(tuple(self._new_app(books, n) for n in range(self._dice.choice([1, 1, 1, 3]))))

    def _new_app(self, books: Books, number: int) -> AppItem:
        dice = self._dice
        leaves = [queue.path for queue in books.queues.values() if queue.leaf]
        parents = [queue.path for queue in books.queues.values() if not queue.leaf]
        queue = dice.choice(leaves) if leaves and dice.random() < 0.85 else f"{dice.choice(parents)}.made{number}"
        if dice.random() < 0.1:
            queue = dice.choice(["made", f"{queue}.deep.er", queue.upper(), "root", "", "root.de fect", "new.er"])
        user = dice.choice(worlds.USERS)
        tags: dict[str, str] = {}
        if dice.random() < 0.15:
            tags["namespace"] = dice.choice(["north", "south"])
        if dice.random() < 0.1:
            tags["namespace.resourcequota"] = _resource({"vcore": dice.randint(3, 20) * 1000})
        if dice.random() < 0.05:
            tags["namespace.resourceguaranteed"] = _resource({"memory": dice.randint(1, 5)})
        if dice.random() < 0.05:
            tags["namespace.resourcemaxapps"] = str(dice.randint(1, 3))
        if dice.random() < 0.06:
            tags["application.create.force"] = "true"
            user = dice.choice([user, ""])
        if dice.random() < 0.02:
            user = dice.choice(["", "not a name"])
        return AppItem(
            f"{books.name[0]}app{dice.randint(0, 25)}",
            queue,
            books.name,
            user,
            worlds.GROUPS_OF.get(user, ()) if user != "not a name" else ("red",),
            tags,
            dice.choice([1_000, 20_000, 90_000]) if dice.random() < (0.3 if self._short_lived else 0.02) else 0,
            {} if dice.random() < 0.03 else None,
        )

    def _end(self, books: Books) -> Command:
        apps = list(books.apps) or ["nobody"]
        return UpdateApplications((), ((books.name, self._dice.choice(apps)),))

    # ---- asks ------------------------------------------------------------------------------------------------------

    def _ask(self, books: Books, app: BookedApp) -> Command:
        dice = self._dice
        return UpdateAllocations(
            [self._item(app, f"k{self._next}-{n}", books=books) for n in range(dice.choice([1, 1, 2, 3, 6]))]
        )

    def _item(self, app: BookedApp, key: str, *, books: Books | None = None) -> AskItem:
        dice = self._dice
        tags: dict[str, str] = {}
        if dice.random() < 0.1:
            tags["creationTime"] = dice.choice(["900", "990", "1000", "1010", "5000", "garbage"])
        if books is not None and dice.random() < 0.07:
            tags[REQUIRED_NODE] = dice.choice([*books.nodes, *books.nodes, _unheard_of(books)])
        previous = self._repeats and dice.random() < 0.5
        keys = [f"shared{dice.randint(1, 4)}"] if self._shared_keys and dice.random() < 0.3 else [key]
        if dice.random() < 0.02:
            keys = [f"{key}#1"]
        policy = dice.random() < 0.9
        amounts = dict(dice.choice(self._shapes)) if dice.random() < 0.75 else self._amounts(0, 8)
        if keys[0].startswith("shared"):  # events name no application: the amounts must tell whose it is
            amounts["vcore"] = amounts.get("vcore", 0) // 500 * 500 + int(app.app_id.partition("app")[2]) + 1
        group = dice.choice(["", "", "driver"])
        return AskItem(
            keys[0],
            app.app_id,
            self._partition_of(app),
            amounts,
            dice.randint(2, 4) if previous and dice.random() < 0.6 else 1,
            dice.choice([0, 0, 0, 1, 5, 10, -7]),
            tags,
            group,
            dice.random() < 0.03 and not group,  # (which is an ordinary ask; gangs have lives of their own)
            dice.random() < 0.1,
            policy and dice.random() < 0.8,
            self._preempting and policy and dice.random() < 0.7,
            policy,
            dice.choice([700, 20_000]) if self._short_lived and dice.random() < 0.2 else 0,
            previous,
        )

    def _partition_of(self, app: BookedApp) -> str:
        return next(name for name, books in self._hearing.books.items() if books.apps.get(app.app_id) is app)

    def _pressure(self, books: Books) -> Command:
        """Many asks of one shape, more than there is room for: what makes reservations and preemptions."""
        apps = list(books.apps.values())
        if not apps:
            return self._app(books)
        app = self._dice.choice(apps)
        item = self._item(app, "", books=books)
        count = self._dice.randint(4, 10)
        return UpdateAllocations([item._replace(key=f"p{self._next}-{n}", wanted=1) for n in range(count)])

    def _claim(self, books: Books) -> Command:
        """Asks within a queue's guarantee that may preempt; the queue may have to get an application first."""
        dice = self._dice
        guaranteed = [queue for queue in books.queues.values() if queue.guaranteed]
        if not guaranteed:
            return self._pressure(books)
        queue = dice.choice(guaranteed)
        apps = [app for app in books.apps.values() if queue.path in books.queues[app.queue].parents()]
        if not apps:
            leaf = queue.path if queue.leaf else f"{queue.path}.made0"
            user = dice.choice(worlds.USERS)
            app_id = f"{books.name[0]}app{dice.randint(0, 25)}"
            return UpdateApplications((AppItem(app_id, leaf, books.name, user, worlds.GROUPS_OF[user]),))
        used = books.queue_used.get(queue.path, {})
        left = {kind: least - used.get(kind, 0) for kind, least in (queue.guaranteed or {}).items()}
        amounts = {kind: dice.randint(1, min(value, 4000)) for kind, value in left.items() if value > 0}
        if not amounts:
            return self._pressure(books)
        item = self._item(dice.choice(apps), "", books=books)._replace(
            quantities=amounts, allow_preempt_other=True, has_preemption_policy=True, wanted=1
        )
        return UpdateAllocations([item._replace(key=f"c{self._next}-{n}") for n in range(dice.randint(1, 3))])

    def _again(self, books: Books, app: BookedApp) -> Command | None:
        """An ask that is there already: changed, or word for word."""
        dice = self._dice
        if app.held and dice.random() < 0.4:
            return self._held_again(app)
        if not app.asks:
            return None
        old = dice.choice(list(app.asks.values()))
        item = self._item(app, old.key, books=books)._replace(key=old.key, previous_generation=old.words["previous"])
        if old.key.startswith("shared"):
            item = item._replace(quantities=dict(old.said))
        if not old.words["previous"]:  # only the previous generation has repeats
            item = item._replace(wanted=1)
        if dice.random() < 0.5:
            item = item._replace(quantities=dict(old.said), priority=old.priority, tags=old.words["tags"])
        return UpdateAllocations([item])

    def _held_again(self, app: BookedApp) -> Command:
        """An ask that was met, or in part: it is about what runs."""
        dice = self._dice
        held = dice.choice(list(app.held.values()))
        item = self._item(app, held.key)._replace(key=held.key)
        if held.key.startswith("shared") or dice.random() < 0.4:
            item = item._replace(quantities=dict(held.said))
        return UpdateAllocations([item])

    # ---- allocations -----------------------------------------------------------------------------------------------

    def _adopt(self, books: Books, app: BookedApp) -> Command | None:
        dice = self._dice
        item = self._item(app, f"a{self._next}")._replace(node_id=self._some_node(books), wanted=1)
        if app.asks and dice.random() < 0.3:
            ask = dice.choice(list(app.asks.values()))
            item = item._replace(key=ask.key, quantities=dict(ask.said))
        elif app.held and dice.random() < 0.4:
            held = dice.choice(list(app.held.values()))
            item = item._replace(key=held.key, previous_generation=held.words["previous"])
            if dice.random() < 0.5:
                item = item._replace(quantities=dict(held.said), node_id=held.node_id)
        if dice.random() < 0.05:
            item = item._replace(node_id=_unheard_of(books))
        return UpdateAllocations([item])

    def _foreign(self, books: Books) -> Command:
        dice = self._dice
        if books.foreign and dice.random() < 0.4:
            key = dice.choice([*books.foreign, "unknown"])
            return UpdateAllocations((), [ReleaseItem(books.name, "", key, Termination.STOPPED_BY_RM)])
        item = AskItem(
            f"f{self._next}" if not books.foreign or dice.random() < 0.7 else dice.choice(list(books.foreign)),
            "",
            books.name,
            self._amounts(1, 4),
            tags={"foreign": dice.choice(["default", "static"])},
            node_id=dice.choice([*([self._some_node(books)] * 8), "", _unheard_of(books)]),
        )
        return UpdateAllocations([item])

    # ---- releases --------------------------------------------------------------------------------------------------

    def _release(self, books: Books, app: BookedApp) -> Command | None:
        dice = self._dice
        held = list(app.held.values())
        if not held and not app.asks:
            return None
        if dice.random() < 0.08:
            return UpdateAllocations((), [self._one_release(app, "", "")])
        found = dice.sample(held, min(len(held), dice.randint(1, 4)))
        releases = [self._one_release(app, each.key, each.uuid if dice.random() < 0.5 else "") for each in found]
        if not releases:
            releases = [self._one_release(app, dice.choice(list(app.asks)), "")]
        if dice.random() < 0.1:
            releases.append(self._one_release(app, "unknown", ""))
        return UpdateAllocations((), releases)

    def _one_release(self, app: BookedApp, key: str, uuid: str) -> ReleaseItem:
        kind = self._dice.choice([*(Termination.STOPPED_BY_RM,) * 8, *Termination])
        owner = "" if uuid and self._dice.random() < 0.2 else app.app_id
        return ReleaseItem(self._partition_of(app), owner, key, kind, uuid)

    def _release_ask(self, books: Books, app: BookedApp) -> Command | None:
        if not app.asks:
            return None
        keys = self._dice.sample(list(app.asks), min(len(app.asks), self._dice.randint(1, 3)))
        owner = "" if self._dice.random() < 0.3 else app.app_id
        return UpdateAllocations(
            (), [ReleaseItem(books.name, owner, key, Termination.STOPPED_BY_RM, ask_only=True) for key in keys]
        )

    def _confirm(self, books: Books) -> Command:
        """Those that were told to go went: confirmed late, twice, or (when the dice never come here) never."""
        told = [held for app in books.apps.values() for held in app.held.values() if held.told]
        if not told:
            return self._free(books)
        chosen = self._dice.sample(told, self._dice.randint(1, len(told)))
        releases = [self._confirmation(books, held) for held in chosen]
        if self._dice.random() < 0.2:
            releases += releases[:1]
        return UpdateAllocations((), releases)

    def _confirmation(self, books: Books, held: BookedAllocation) -> ReleaseItem:
        kind = Termination.TIMEOUT if held.told == "timeout" else Termination.PREEMPTED_BY_SCHEDULER
        if self._dice.random() < 0.15:
            kind = Termination.STOPPED_BY_RM
        return ReleaseItem(books.name, held.app_id, held.key, kind, held.uuid)

    def _free(self, books: Books) -> Command:
        """Ends what runs on one node: the room that others wait for."""
        node_id = self._some_node(books)
        on = [held for app in books.apps.values() for held in app.held.values() if held.node_id == node_id]
        return UpdateAllocations(
            (),
            [
                ReleaseItem(books.name, held.app_id, held.key, Termination.STOPPED_BY_RM, held.uuid)
                for held in on[: self._dice.randint(1, 6)]
            ],
        )

    def _swap(self, books: Books) -> Command:
        """Everything of an application goes, and others come, in one message."""
        apps = list(books.apps.values())
        if len(apps) < 2:
            return self._app(books)
        one, other = self._dice.sample(apps, 2)
        return UpdateAllocations(
            [self._item(other, f"s{self._next}-{n}") for n in range(3)],
            [ReleaseItem(books.name, one.app_id, "", Termination.STOPPED_BY_RM)],
        )

    # ---- what an RM must not say -----------------------------------------------------------------------------------

    def _nonsense(self, books: Books) -> Command:
        dice = self._dice
        wrong: list[Command] = [
            UpdateNodes((NodeItem(_unheard_of(books), dice.choice(list(NodeAction)), partition=books.name),)),
            UpdateNodes((NodeItem("minus", NodeAction.CREATE, capacity={"vcore": -1}, partition=books.name),)),
            UpdateNodes((NodeItem("else", NodeAction.CREATE, capacity={"vcore": 1}, partition="nowhere"),)),
            UpdateApplications((AppItem("lost", "root.a", "nowhere", "ann"),), (("nowhere", "lost"),)),
            UpdateAllocations([AskItem("k", "nobody", books.name, {"vcore": 1})]),
            UpdateAllocations([AskItem("k", "nobody", "nowhere", {"vcore": 1})]),
            UpdateAllocations((), [ReleaseItem("nowhere", "nobody", "k", Termination.STOPPED_BY_RM)]),
        ]
        apps = list(books.apps)
        if apps:
            app_id = dice.choice(apps)
            wrong += [
                UpdateAllocations([AskItem(f"z{self._next}", app_id, books.name, {"vcore": 0})]),
                UpdateAllocations([AskItem(f"z{self._next}", app_id, books.name, {"vcore": -5})]),
                UpdateAllocations([AskItem(f"z{self._next}", app_id, books.name, {"vcore": 1}, wanted=0)]),
            ]
        return dice.choice(wrong)

    # ---- amounts ---------------------------------------------------------------------------------------------------

    def _amounts(self, low: int, high: int) -> dict[str, int]:
        dice = self._dice
        found = {"vcore": dice.randint(low, high) * dice.choice([500, 1000]), "memory": dice.randint(low, high)}
        if dice.random() < 0.2:
            found["gpu"] = dice.randint(0, 2)
        elif dice.random() < 0.06:
            found[_GPU_MILLI] = dice.choice([0, 250, 500, 1000, 2000])
        if dice.random() < 0.04:
            found["disk"] = dice.randint(1, 3)
        if dice.random() < 0.1:
            del found[dice.choice(list(found))]
        return found


def _unheard_of(books: Books) -> str:
    """A node that is not there, until nonsense makes it. (Of its partition: events name a node, and no partition.)"""
    return f"{books.name[0]}unheard-of"


def _resource(amounts: dict[str, int]) -> str:
    said: dict[str, Any] = {"resources": {name: {"value": str(value)} for name, value in amounts.items()}}
    return json.dumps(said)
