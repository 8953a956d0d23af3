"""The part of a resource manager without features: whatever an RM may say besides, and what it must not say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from muster_core.config.queue_config import INDEPENDENT
from muster_core.model.application import Application
from muster_core.model.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.partition import Partition
from simulation import worlds
from simulation.books import Amounts
from simulation.speech import id_of

if TYPE_CHECKING:
    from simulation.manager import ResourceManager

GPU_MILLI = "nvidia.com/gpu-milli"


class Oddities:
    def __init__(self, rm: ResourceManager) -> None:
        dice = rm.dice
        self._rm = rm
        # How this life is.
        self._shared_keys = dice.random() < 0.1
        self._short_lived = dice.random() < 0.3
        rm.kinds |= {"claim": 9.0, "foreign": 4.0, "independent": 2.0, "swap": 2.0, "app": 10.0}
        rm.makers |= {
            "claim": self._claim,
            "foreign": self._foreign,
            "independent": self._independent,
            "swap": self._swap,
        }

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def node(self, partition: Partition, item: NodeItem) -> NodeItem:
        """A node with more words, perhaps with something that runs there."""
        rm, dice = self._rm, self._rm.dice
        apps = list(partition.apps.values())
        existing = (rm.item(partition, dice.choice(apps)),) if apps and rm.maybe(0.15) else ()
        return NodeItem(
            item.node_id,
            item.action,
            {"si/instance-type": dice.choice(["small", "large"])} if rm.maybe(0.3) else {},
            capacity=item.capacity,
            occupied=rm.amounts() if rm.maybe(0.1) else None,
            existing=existing,
            partition=item.partition if item.partition != "default" or rm.maybe(0.8) else dice.choice(["", "DEFAULT"]),
        )

    def capacity(self, found: Amounts) -> Amounts:
        if self._rm.maybe(0.1):
            found[GPU_MILLI] = 1000 * self._rm.dice.randint(1, 4)
        if self._rm.maybe(0.05):
            found["disk"] = self._rm.dice.randint(1, 9)
        return found

    def attributes(self, partition: Partition, node_id: str) -> tuple[str, dict[str, str]]:
        """Other attributes of a node; among them, or alone, whether it is ready."""
        rm, dice = self._rm, self._rm.dice
        said = {"ready": dice.choice(["true", "true", "false"])}
        if rm.maybe(0.3):
            said = {"si/rackname": dice.choice(["r1", "r2"]), **(said if rm.maybe(0.5) else {})}
        if rm.maybe(0.05):
            said["ready"] = "perhaps"
        unready = [node.node_id for node in partition.nodes.values() if not node.ready]
        if unready and rm.maybe(0.5):
            return dice.choice(unready), {"ready": "true"}
        return node_id, said

    # ---- applications ----------------------------------------------------------------------------------------------

    def applications(self, partition: Partition) -> Command:
        count = self._rm.dice.choice([1, 1, 1, 3])
        return UpdateApplications(tuple(self._application(partition, number) for number in range(count)))

    def _application(self, partition: Partition, number: int) -> AppItem:
        rm, dice = self._rm, self._rm.dice
        queues = [queue for queue in partition.queues.values() if not queue.path.endswith(INDEPENDENT)]
        leaves = [queue.path for queue in queues if queue.leaf]
        parents = [queue.path for queue in queues if not queue.leaf]
        queue = dice.choice(leaves) if leaves and rm.maybe(0.85) else f"{dice.choice(parents)}.made{number}"
        if rm.maybe(0.1):
            queue = dice.choice(["made", f"{queue}.deep.er", queue.upper(), "root", "", "root.de fect", "new.er"])
        user = dice.choice(worlds.USERS)
        tags: dict[str, str] = {}
        if rm.maybe(0.15):
            tags["namespace"] = dice.choice(["north", "south"])
        if rm.maybe(0.1):
            tags["namespace.resourcequota"] = _resource({"vcore": dice.randint(3, 20) * 1000})
        if rm.maybe(0.05):
            tags["namespace.resourceguaranteed"] = _resource({"memory": dice.randint(1, 5)})
        if rm.maybe(0.05):
            tags["namespace.resourcemaxapps"] = str(dice.randint(1, 3))
        if rm.maybe(0.06):
            tags["application.create.force"] = "true"
            user = dice.choice([user, ""])
        if rm.maybe(0.02):
            user = dice.choice(["", "not a name"])
        return AppItem(
            f"{partition.name[0]}app{dice.randint(0, 25)}",
            queue,
            partition.name,
            user,
            worlds.GROUPS_OF.get(user, ()) if user != "not a name" else ("red",),
            tags=tags,
            execution_timeout_ms=self._timeout_ms(),
            placeholder_ask={} if rm.maybe(0.03) else None,
        )

    def _timeout_ms(self) -> int:
        often = 0.3 if self._short_lived else 0.02
        return self._rm.dice.choice([1_000, 20_000, 90_000]) if self._rm.maybe(often) else 0

    # ---- asks ------------------------------------------------------------------------------------------------------

    def item(self, partition: Partition, app: Application, item: AskItem) -> AskItem:
        rm, dice = self._rm, self._rm.dice
        tags, key, size = dict(item.tags), item.key, item.quantities
        if rm.maybe(0.1):
            tags["creationTime"] = dice.choice(["2900", "2990", "3000", "3010", "7000", "garbage"])
        if tags and rm.maybe(0.1):
            tags = {name: _unheard_of(partition) for name in tags}
        if self._shared_keys and rm.maybe(0.3):
            key = f"shared{dice.randint(1, 4)}"
        elif rm.maybe(0.02):
            key = f"{key}#1"
        if key.startswith("shared"):  # events name no application: the amounts must tell whose it is
            size["vcore"] = (
                size.get("vcore", 0) // 500 * 500 + int(app.app_id.partition("app")[2].partition("-")[0] or 40) + 1
            )
        group = dice.choice(["", "", "driver"])
        policy = rm.maybe(0.9)
        # (Where it may help, it mostly says how long its asks run.)
        often = 0.7 if app.queue.ancestry[-1].backfills else 0.2 if self._short_lived else 0.0
        return replace(
            item,
            key=key,
            quantities=size,
            priority=-7 if rm.maybe(0.1) else item.priority,
            tags=tags,
            task_group=group,
            placeholder=rm.maybe(0.03) and not group,  # (which is an ordinary ask; gangs have lives of their own)
            originator=rm.maybe(0.1),
            allow_preempt_self=policy and item.allow_preempt_self,
            allow_preempt_other=policy and item.allow_preempt_other,
            has_preemption_policy=policy,
            execution_timeout_ms=dice.choice([700, 20_000, 20_000, 90_000]) if rm.maybe(often) else 0,
        )

    def amounts(self, found: Amounts) -> Amounts:
        """Of other types, and sometimes of one less, or nothing."""
        rm, dice = self._rm, self._rm.dice
        if rm.maybe(0.15):
            found["vcore"] = dice.randint(0, 8) * 1000
        if rm.maybe(0.06):
            found[GPU_MILLI] = dice.choice([0, 250, 500, 1000, 2000])
        if rm.maybe(0.04):
            found["disk"] = dice.randint(1, 3)
        if rm.maybe(0.1):
            del found[dice.choice(list(found))]
        return found

    def size_again(self, item: AskItem, size: Amounts) -> Amounts:
        return dict(item.quantities) if item.key.startswith("shared") else size

    def _claim(self, partition: Partition, apps: list[Application]) -> Command | None:
        """Asks within a queue's guarantee that may preempt; the queue may have to get an application first."""
        rm, dice = self._rm, self._rm.dice
        guaranteed = [queue for queue in partition.queues.values() if queue.guaranteed]
        if not guaranteed:
            return rm.press(partition, apps)
        queue = dice.choice(guaranteed)
        within = [app for app in apps if queue in app.queue.ancestry]
        if not within:
            leaf = queue.path if queue.leaf else f"{queue.path}.made0"
            user = dice.choice(worlds.USERS)
            app_id = f"{partition.name[0]}app{dice.randint(0, 25)}"
            return UpdateApplications((AppItem(app_id, leaf, partition.name, user, worlds.GROUPS_OF[user]),))
        names, used = partition.types.names, queue.allocated
        # (In the order of names: a fold has them in no useful order.)
        left = dict(sorted((names[kind], least - used[kind]) for kind, least in (queue.guaranteed or {}).items()))
        amounts = {kind: dice.randint(1, min(value, 4000)) for kind, value in left.items() if value > 0}
        if not amounts:
            return rm.press(partition, apps)
        item = rm.item(partition, dice.choice(within), amounts)
        item = replace(item, quantities=amounts, allow_preempt_other=True, has_preemption_policy=True, wanted=1)
        return UpdateAllocations([replace(item, key=f"{item.key}-{n}") for n in range(dice.randint(1, 3))])

    def adopted(self, partition: Partition, item: AskItem) -> AskItem:
        """Something that runs, perhaps where nothing is."""
        return replace(item, node_id=_unheard_of(partition)) if self._rm.maybe(0.05) else item

    # ---- what belongs to no application ----------------------------------------------------------------------------

    def _foreign(self, partition: Partition, apps: list[Application]) -> Command | None:
        rm, dice = self._rm, self._rm.dice
        known = list(partition.foreign)
        if known and rm.maybe(0.4):
            key = dice.choice([*known, "unknown"])
            return UpdateAllocations((), [ReleaseItem(partition.name, "", key, Termination.STOPPED_BY_RM)])
        rm.number += 1
        item = AskItem(
            f"f{rm.number}" if not known or rm.maybe(0.7) else dice.choice(known),
            "",
            partition.name,
            rm.amounts(),
            tags={"foreign": dice.choice(["default", "static"])},
            node_id=dice.choice([*([rm.some_node(partition)] * 8), "", _unheard_of(partition)]),
        )
        return UpdateAllocations([item])

    def _independent(self, partition: Partition, apps: list[Application]) -> Command | None:
        """Of the scheduler's own application. (In one partition: events name it, which both would have.)"""
        rm, dice = self._rm, self._rm.dice
        if partition.name != "default":
            return self._foreign(partition, apps)
        own = partition.apps.get(INDEPENDENT)
        if own is not None and own.allocations and rm.maybe(0.3):
            each = dice.choice(list(own.allocations.values()))
            return UpdateAllocations((), [ReleaseItem(partition.name, "", each.key, Termination.STOPPED_BY_RM)])
        like = own if own is not None else dice.choice(apps)
        items = [replace(rm.item(partition, like), app_id="") for _ in range(dice.choice([1, 1, 2, 4]))]
        if rm.maybe(0.4):
            items = [replace(item, node_id=rm.some_node(partition), wanted=1) for item in items]
        if partition.foreign and rm.maybe(0.05):
            items.append(replace(items[0], key=dice.choice(list(partition.foreign))))
        return UpdateAllocations(items)

    # ---- releases --------------------------------------------------------------------------------------------------

    def releases(self, items: list[ReleaseItem]) -> list[ReleaseItem]:
        """Releases with all termination types, by key or UUID, also of unknown allocations."""
        rm, dice = self._rm, self._rm.dice
        found = []
        for item in items:
            uuid = item.uuid if rm.maybe(0.5) else ""
            app_id = "" if uuid and rm.maybe(0.2) else item.app_id
            kind = dice.choice([*(Termination.STOPPED_BY_RM,) * 8, *Termination])
            found.append(item._replace(uuid=uuid, app_id=app_id, termination=kind))
        if rm.maybe(0.1):
            found.append(items[0]._replace(key="unknown", uuid=""))
        return found

    def _swap(self, partition: Partition, apps: list[Application]) -> Command | None:
        """Everything of an application goes, and others come, in one message."""
        one, other = self._rm.dice.sample(apps, 2)
        return UpdateAllocations(
            [self._rm.item(partition, other) for _ in range(3)],
            [ReleaseItem(partition.name, id_of(one), "", Termination.STOPPED_BY_RM)],
        )

    # ---- what an RM must not say -----------------------------------------------------------------------------------

    def nonsense(self, partition: Partition) -> Command:
        """Messages about unknown objects, and with invalid amounts."""
        rm, dice, name = self._rm, self._rm.dice, partition.name
        nowhere = "nowhere"
        wrong: list[Command] = [
            UpdateNodes((NodeItem(_unheard_of(partition), dice.choice(list(NodeAction)), partition=name),)),
            UpdateNodes((NodeItem("minus", NodeAction.CREATE, capacity={"vcore": -1}, partition=name),)),
            UpdateNodes((NodeItem("else", NodeAction.CREATE, capacity={"vcore": 1}, partition=nowhere),)),
            UpdateApplications((AppItem("lost", "root.a", nowhere, "ann"),), ((nowhere, "lost"),)),
            UpdateApplications((), ((name, "nobody"),)),
            UpdateAllocations([AskItem("k", "nobody", name, {"vcore": 1})]),
            UpdateAllocations([AskItem("k", "nobody", nowhere, {"vcore": 1})]),
            UpdateAllocations((), [ReleaseItem(nowhere, "nobody", "k", Termination.STOPPED_BY_RM)]),
        ]
        for app in list(partition.apps.values())[:1]:
            rm.number += 1
            key, app_id = f"z{rm.number}", id_of(app)
            wrong += [
                UpdateAllocations([AskItem(key, app_id, name, {"vcore": 0})]),
                UpdateAllocations([AskItem(key, app_id, name, {"vcore": -5})]),
                UpdateAllocations([AskItem(key, app_id, name, {"vcore": 1}, wanted=0)]),
                UpdateAllocations((), [ReleaseItem(name, app_id, "unknown", dice.choice(list(Termination)))]),
            ]
        return dice.choice(wrong)


def _unheard_of(partition: Partition) -> str:
    """A node that is not there, until nonsense makes it. (Of its partition: events name a node, and no partition.)"""
    return f"{partition.name[0]}unheard-of"


def _resource(amounts: Amounts) -> str:
    said: dict[str, Any] = {"resources": {name: {"value": str(value)} for name, value in amounts.items()}}
    return json.dumps(said)
