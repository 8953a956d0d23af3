"""The books of the auditor of lives with other managers: what the scheduler had been told, and naive sums of it.

They are made of what goes in (the RM's and the sources' words) and of what comes out as answers; of the core's own sums
nothing is read. What counts of a node is put together anew each time somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    SetSourceState,
    SourceState,
)
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
from muster_si.constants import FOREIGN, REQUIRED_NODE_TAG
from simulation.books import Amounts, Document, configured_queues
from simulation.external_world import Key, plus

Name = tuple[str, str]
OVER = ("Completed", "Failed", "Expired", "Rejected")


@dataclass(slots=True)
class RmNode:
    """The RM's report of a node. ``capacity`` None: it does not have it, and only drains what others brought."""

    capacity: Amounts | None
    occupied: Amounts
    attributes: dict[str, str]
    schedulable: bool = True


@dataclass(slots=True)
class App:
    """An unfinished application of the RM."""

    app_id: str
    queue: str
    item: AppItem


@dataclass(slots=True, eq=False)
class Wanted:
    app_id: str
    key: str
    quantities: Amounts
    priority: int = 0
    required_node: str = ""
    task_group: str = ""
    placeholder: bool = False


@dataclass(slots=True, eq=False)
class Held:
    """A container. ``told``: it was told to go, and the RM has not confirmed. ``adopted``: the RM reported it."""

    app_id: str
    key: str
    node_id: str
    quantities: Amounts
    priority: int = 0
    told: str = ""
    adopted: bool = False
    required_node: str = ""
    task_group: str = ""
    placeholder: bool = False

    def __repr__(self) -> str:
        return f"{self.app_id}/{self.key} {self.quantities} on {self.node_id}"


@dataclass(slots=True)
class Said:
    """What a source said last of an object. ``life``: in which it did; ``stale``: it cannot be relied on any more.

    ``withdrawn``: of an offer that its source forgot before it was given back: it goes when nothing needs it.
    """

    what: ExternalObject
    life: str
    stale: bool = False
    withdrawn: bool = False


@dataclass(slots=True)
class Source:
    """A source. ``life``: the newest one. ``lost``: it was stale, and has not been live again."""

    name: str
    life: str = ""
    state: SourceState = SourceState.LISTING
    drains: bool = True
    reason: str = ""
    lost: bool = False
    objects: dict[Key, Said] = field(default_factory=dict)

    def of(self, kind: ExternalKind) -> Iterator[Said]:
        return (each for (number, _), each in self.objects.items() if number is kind)

    def distrusts(self, said: Said) -> bool:
        """Whether this object of the source keeps new allocations from its node."""
        return self.drains and (said.stale or self.lost)


@dataclass(slots=True)
class Effective:
    """The merged values of a node."""

    capacity: Amounts
    occupied: Amounts
    schedulable: bool
    attributes: dict[str, str]
    sources: list[str]


class Books:
    """The books of one RM and all its sources.

    :ivar pods: keys of what the RM ever reported as nobody's.
    :ivar offer_states: of each (source, offer) as its record says: what becomes of offers is the scheduler's to decide.
    """

    def __init__(self, document: Document) -> None:
        self.sources: dict[str, Source] = {}
        self.pods: set[str] = set()
        self.offer_states: dict[tuple[str, str], str] = {}
        self.registered(document)

    def registered(self, document: Document) -> None:
        """Starts the RM anew. The sources' reports stay."""
        self.configure(document)
        self.rm_nodes: dict[str, RmNode] = {}
        self.foreign: dict[str, tuple[str, Amounts]] = {}
        self.apps: dict[str, App] = {}
        self.wanted: dict[Name, Wanted] = {}
        self.held: dict[Name, Held] = {}
        # Reported as running: the answer is an echo, and no decision.
        self.reported: dict[Name, AskItem] = {}
        # By application and task group: placeholders that went for asks that have not taken their places yet.
        self.places: Counter[Name] = Counter()

    def configure(self, document: Document) -> None:
        self.document = document
        self.queues = configured_queues(document["partitions"][0])

    # ---- what goes in ----------------------------------------------------------------------------------------------

    def take(self, command: Command) -> list[tuple[str, bool]]:
        """Takes one command. Returns (node, whether it must be accepted) for each node in it."""
        answers: list[tuple[str, bool]] = []
        match command:
            case UpdateNodes():
                answers = [(item.node_id, self._node(item)) for item in command.nodes]
            case UpdateApplications():
                for new in command.new:
                    self.apps.setdefault(new.app_id, App(new.app_id, new.queue, new))
                for _, app_id in command.remove:
                    if self.apps.pop(app_id, None) is not None:
                        for name in [name for name in self.wanted if name[0] == app_id]:
                            del self.wanted[name]
            case UpdateAllocations():
                self._allocations(command)
            case ApplyExternalChanges():
                self._external(command)
            case SetSourceState():
                self._source(command)
        self._forget_gone()
        return answers

    def _forget_gone(self) -> None:
        """Forgets the allocations on a removed node, and that the RM drained it."""
        for node_id in [node_id for node_id, said in self.rm_nodes.items() if said.capacity is None]:
            if self.effective(node_id) is None:
                del self.rm_nodes[node_id]
        for key in [key for key, (node_id, _) in self.foreign.items() if self.effective(node_id) is None]:
            del self.foreign[key]

    def _node(self, item: NodeItem) -> bool:
        """Takes one node's change. Returns whether it must be accepted."""
        said = self.rm_nodes.get(item.node_id)
        own = said is not None and said.capacity is not None
        match item.action:
            case NodeAction.CREATE:
                if own:
                    return False
                capacity, occupied = dict(item.capacity or {}), dict(item.occupied or {})
                self.rm_nodes[item.node_id] = RmNode(capacity, occupied, dict(item.attributes))
            case NodeAction.DRAIN_NODE:
                if self.effective(item.node_id) is None:
                    return False
                # (One that others brought it may drain, and says nothing else of it.)
                self.rm_nodes.setdefault(item.node_id, RmNode(None, {}, {})).schedulable = False
            case NodeAction.DRAIN_TO_SCHEDULABLE:
                if said is None or said.schedulable:
                    there = self.effective(item.node_id)
                    return there is not None and there.schedulable
                said.schedulable = True
                if not own:
                    del self.rm_nodes[item.node_id]
            case NodeAction.UPDATE if said is not None and own:
                said.capacity = dict(item.capacity) if item.capacity is not None else said.capacity
                said.occupied = dict(item.occupied) if item.occupied is not None else said.occupied
                said.attributes = dict(item.attributes) or said.attributes
            case NodeAction.DECOMISSION if own:
                del self.rm_nodes[item.node_id]
                for key in [key for key, (node_id, _) in self.foreign.items() if node_id == item.node_id]:
                    del self.foreign[key]
            case _:
                return False
        return True

    def _allocations(self, command: UpdateAllocations) -> None:
        for release in command.releases:
            if not release.app_id:
                self.foreign.pop(release.key, None)
                continue
            self._release(release)
        for ask in command.asks:
            name = (ask.app_id, ask.key)
            if FOREIGN in ask.tags:
                self.pods.add(ask.key)
                self.foreign[ask.key] = (ask.node_id, dict(ask.quantities))
            elif ask.node_id:
                self.reported[name] = ask
            elif name in self.held:  # it was placed before it came again: what runs is as the ask says now
                self.held[name].quantities = dict(ask.quantities)
            else:
                self.wanted[name] = Wanted(
                    ask.app_id,
                    ask.key,
                    dict(ask.quantities),
                    ask.priority,
                    required(ask),
                    ask.task_group,
                    ask.placeholder,
                )

    def _release(self, release: ReleaseItem) -> None:
        name = (release.app_id, release.key)
        held = self.held.get(name)
        if release.termination is Termination.SCHEDULING_FAILED_ON_RM and held is not None:
            del self.held[name]  # it is wanted again, unless it was to go
            if held.told in ("", "PREEMPTED_BY_SCHEDULER"):
                again = (held.quantities, held.priority, held.required_node, held.task_group, held.placeholder)
                self.wanted[name] = Wanted(*name, *again)
            return
        for wanted in [each for each in self.wanted if each == name or (not release.key and each[0] == release.app_id)]:
            del self.wanted[wanted]
        if held is not None and held.told and release.termination is not Termination.STOPPED_BY_RM:
            del self.held[name]  # confirmed: it is not told again
            self.places[held.app_id, held.task_group] += held.told == "PLACEHOLDER_REPLACED"

    def _external(self, command: ApplyExternalChanges) -> None:
        source = self._source_of(command.source, command.life)
        for change in command.changes:
            key = (change.kind, change.object_id)
            if change.what is not None:
                source.objects[key] = Said(change.what, command.life, change.stale)
            elif change.stale:
                if key in source.objects and not source.objects[key].withdrawn:
                    source.objects[key].stale = True
                    source.objects[key].life = command.life
            else:
                self._forget(source, key)

    def _forget(self, source: Source, key: Key) -> None:
        """Forgets a source's object."""
        said = source.objects.get(key)
        if said is None:
            return
        if key[0] is ExternalKind.OFFER and self.is_lent(source.name, key[1]):
            said.withdrawn = True
        else:
            del source.objects[key]

    def _source(self, command: SetSourceState) -> None:
        source = self._source_of(command.source, command.life)
        source.state, source.drains = command.state, command.drains
        if command.state is SourceState.STALE:
            source.lost, source.reason = True, command.reason
        if command.state is SourceState.LIVE:
            source.lost, source.reason = False, ""
            for key in [key for key, said in source.objects.items() if said.life != command.life]:
                self._forget(source, key)

    def _source_of(self, name: str, life: str) -> Source:
        source = self.sources.setdefault(name, Source(name, life))
        if source.life != life:  # another life begins with its listing, whether it says so or not
            source.life, source.state = life, SourceState.LISTING
        return source

    # ---- what counts -----------------------------------------------------------------------------------------------

    def parts(self, node_id: str) -> list[tuple[Source, ExternalNode | None, list[ExternalOffer], bool]]:
        """Who speaks of a node besides the RM: what it says of the node and lends there, and whether it is trusted."""
        found = []
        for name in sorted(self.sources):
            source = self.sources[name]
            about = [each for each in source.objects.values() if getattr(each.what, "node_id", None) == node_id]
            if about:
                nodes = [each.what for each in about if isinstance(each.what, ExternalNode)]
                offers = [each.what for each in about if isinstance(each.what, ExternalOffer)]
                trusted = not any(source.distrusts(each) for each in about)
                found.append((source, nodes[0] if nodes else None, offers, trusted))
        return found

    def is_offered(self, source: Source, offer: ExternalOffer) -> bool:
        """Whether the offer may be used for new allocations."""
        withdrawn = source.objects[ExternalKind.OFFER, offer.offer_id].withdrawn
        return not offer.revoked and not withdrawn and self.is_lent(source.name, offer.offer_id)

    def is_lent(self, source: str, offer_id: str) -> bool:
        return self.offer_states.get((source, offer_id)) != "RETURNED"

    def lent(self, node_id: str) -> Amounts | None:
        """The offered amounts of a node, revoked or not; None: the node is not offered."""
        if node_id in self.rm_nodes:
            return None
        sums: Amounts = {}
        for source, node, offers, _ in self.parts(node_id):
            if node is not None and node.capacity is not None:
                return None
            for offer in offers:
                if self.is_lent(source.name, offer.offer_id):
                    sums = plus(sums, offer.quantities)
        return sums

    def effective(self, node_id: str) -> Effective | None:
        """The merged values of a node; None: there is no such node."""
        rm = self.rm_nodes.get(node_id)
        parts = self.parts(node_id)
        spoken: list[tuple[Amounts, bool]] = []
        brought = False
        occupied: Amounts = {}
        attributes: dict[str, str] = {}
        schedulable = True
        if rm is not None:
            if rm.capacity is not None:
                spoken.append((rm.capacity, False))
                brought = True
            occupied, attributes, schedulable = plus(occupied, rm.occupied), dict(rm.attributes), rm.schedulable
        for source, node, lent, trusted in parts:
            # (An offer that is being asked back gives nothing more, but what runs on it is on the node still.)
            capacity: Amounts | None = dict(node.capacity) if node is not None and node.capacity is not None else None
            may_bring = node is None or node.brings
            brought = brought or (may_bring and bool(capacity) and any((capacity or {}).values()))
            if node is not None:
                occupied = plus(occupied, node.occupied)
                schedulable = schedulable and node.schedulable
                attributes = {**node.attributes, **attributes}
            for offer in lent:
                capacity = plus(capacity or {}, offer.quantities if self.is_offered(source, offer) else {})
                if self.is_offered(source, offer):
                    attributes = {**offer.attributes, **attributes}
                brought = brought or (may_bring and self.is_lent(source.name, offer.offer_id))
            if capacity is not None:
                spoken.append((capacity, bool(lent) or (node is not None and node.whole)))
            schedulable = schedulable and trusted
        if not brought:
            return None
        types = dict.fromkeys(name for amounts, _ in spoken for name in amounts)
        merged: Amounts = {}
        for name in types:
            merged[name] = min(amounts.get(name, 0) for amounts, whole in spoken if whole or name in amounts)
        return Effective(
            {name: value for name, value in merged.items() if value},
            {name: value for name, value in occupied.items() if value},
            schedulable,
            attributes,
            [source.name for source, _, _, _ in parts],
        )

    def disputes(self, node_id: str) -> dict[str, dict[str, int]]:
        """The resource types of a node with different reports: by type, each reporter's amount."""
        named: list[tuple[str, Amounts]] = []
        rm = self.rm_nodes.get(node_id)
        if rm is not None and rm.capacity is not None:
            named.append(("", rm.capacity))
        for source, node, lent, _ in self.parts(node_id):
            capacity = dict(node.capacity) if node is not None and node.capacity is not None else {}
            for offer in lent:
                if self.is_offered(source, offer):
                    capacity = plus(capacity, offer.quantities)
            named.append((source.name, capacity))
        found: dict[str, dict[str, int]] = {}
        for name in dict.fromkeys(name for _, amounts in named for name in amounts):
            said = {who: amounts[name] for who, amounts in named if name in amounts}
            if len(set(said.values())) > 1:
                found[name] = said
        return found

    def nodes(self) -> dict[str, Effective]:
        ids = list(self.rm_nodes)
        for source in self.sources.values():
            said = [*source.of(ExternalKind.NODE), *source.of(ExternalKind.OFFER)]
            ids += [each.what.node_id for each in said if isinstance(each.what, ExternalNode | ExternalOffer)]
        found = ((node_id, self.effective(node_id)) for node_id in dict.fromkeys(ids))
        return {node_id: node for node_id, node in found if node is not None}

    # ---- sums ------------------------------------------------------------------------------------------------------

    def containers(self, node_id: str, *, adopted: bool = True) -> Amounts:
        """The RM's allocations on a node, with or without reported ones."""
        sums: Amounts = {}
        for held in self.held.values():
            if held.node_id == node_id and (adopted or not held.adopted):
                sums = plus(sums, held.quantities)
        return sums

    def vms(self) -> Iterator[tuple[Source, ExternalAllocation]]:
        """The VMs, as their sources reported them."""
        for name in sorted(self.sources):
            for said in self.sources[name].of(ExternalKind.ALLOCATION):
                assert isinstance(said.what, ExternalAllocation)
                yield self.sources[name], said.what

    def others(self, node_id: str) -> Amounts:
        """Resources of others on a node: VMs, and the RM's foreign allocations."""
        sums: Amounts = {}
        for on, quantities in self.foreign.values():
            if on == node_id:
                sums = plus(sums, quantities)
        for _, vm in self.vms():
            if vm.node_id == node_id:
                sums = plus(sums, vm.quantities)
        return sums

    def owner(self, source: Source, vm: ExternalAllocation) -> str:
        """The queue in which a VM counts; "": in none, it has no owner or nobody knows it (yet)."""
        said = source.objects.get((ExternalKind.APPLICATION, vm.app_id))
        return said.what.queue if said is not None and isinstance(said.what, ExternalApplication) else ""

    def used_in(self, path: str) -> Amounts:
        """Usage of a queue, with the queues below it."""
        sums: Amounts = {}
        for held in self.held.values():
            app = self.apps.get(held.app_id)
            if app is not None and _is_in(app.queue, path):
                sums = plus(sums, held.quantities)
        for source, vm in self.vms():
            queue = self.owner(source, vm)
            if queue and _is_in(queue, path) and self.effective(vm.node_id) is not None:
                sums = plus(sums, vm.quantities)
        return sums

    def maximum_of(self, path: str) -> Amounts:
        """A queue's max: the smallest of the configured one and those of sources."""
        rules = self.queues.get(path)
        most = dict(rules.maximum or {}) if rules is not None else {}
        for source in self.sources.values():
            said = source.objects.get((ExternalKind.QUEUE, path))
            if said is not None and isinstance(said.what, ExternalQueue):
                for name, value in said.what.maximum.items():
                    most[name] = min(value, most.get(name, value))
        return most

    def pool(self, name: str) -> int | None:
        """The RM's part of a pool, used or not; None: there is no such pool."""
        said = [
            (source, source.objects[ExternalKind.POOL, name])
            for source in self.sources.values()
            if (ExternalKind.POOL, name) in source.objects
        ]
        if not said:
            return None
        if all(source.distrusts(each) for source, each in said):
            return 0
        pools = [each.what for _, each in said if isinstance(each.what, ExternalPool)]
        return min(each.quantity for each in pools) - sum(each.occupied for each in pools)

    def used_of(self, name: str) -> int:
        """The RM's total usage of a type."""
        return sum(held.quantities.get(name, 0) for held in self.held.values())


def levels(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def required(ask: AskItem) -> str:
    """The ask's required node."""
    return ask.tags.get(REQUIRED_NODE_TAG, "")


def _is_in(queue: str, path: str) -> bool:
    return queue == path or queue.startswith(path + ".")
