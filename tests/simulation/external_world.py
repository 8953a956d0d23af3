"""Hosts that containers and VMs share, as they really are; and the managers beside the RM, each with a plan of its own.

A manager says what it has in :attr:`Manager.objects`, whole, at any time; how that comes to the scheduler is the
informer's (``external_informer.py``). What the RM runs it learns by looking at the host.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    id_of,
    kind_of,
)
from simulation.books import SECOND_NS, Amounts

Key = tuple[ExternalKind, str]
VMS, RACK, LENT, LICENCES = "vms", "rack", "lent", "licences"
POOLS = ("lic.cad", "lic.sim")
TENANTS = ("tenant-a", "tenant-b")
TENANT_QUEUES = ("root.a", "root.b.x")
QUOTA_QUEUES = ("root.a", "root.b", "root.c")
TYPES = ("vcore", "memory", "gpu")


def plus(left: Amounts, right: Amounts) -> Amounts:
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}


def minus(left: Amounts, right: Amounts) -> Amounts:
    """The difference; below zero where too much is taken."""
    return {name: left.get(name, 0) - right.get(name, 0) for name in {**left, **right}}


def covers(room: Amounts, wanted: Amounts) -> bool:
    """Whether all that is wanted is there."""
    return all(room.get(name, 0) >= value for name, value in wanted.items() if value > 0)


@dataclass
class Vm:
    """A virtual machine. ``tenant``: the owner whose queue it counts in, or ""."""

    key: str
    size: Amounts
    tenant: str = ""
    priority: int = 0


@dataclass
class Host:
    """A machine.

    :ivar physical: what it has.
    :ivar overhead: what runs there besides containers and VMs.
    :ivar vms: by key, what the other manager runs there.
    :ivar managed: the VM manager has it. ``brought``: it says so even where the RM does not.
    :ivar known: the RM may use it.
    """

    host_id: str
    physical: Amounts
    overhead: Amounts = field(default_factory=dict)
    vms: dict[str, Vm] = field(default_factory=dict)
    managed: bool = False
    brought: bool = False
    known: bool = False
    maintained: bool = False
    rack: str = "a"

    def used(self) -> Amounts:
        sums = dict(self.overhead)
        for vm in self.vms.values():
            sums = plus(sums, vm.size)
        return sums


class World:
    """All hosts.

    :param containers: what the RM runs on a host, looked up there.
    """

    def __init__(self, dice: random.Random, containers: Callable[[str], Amounts]) -> None:
        self.containers = containers
        self.hosts: dict[str, Host] = {}
        for number in range(dice.randint(2, 5)):
            host = Host(f"h{number}", physical(dice), managed=True, brought=dice.random() < 0.5)
            host.known = not host.brought or dice.random() < 0.6
            if dice.random() < 0.5:
                host.overhead = {"vcore": 500, "memory": 1}
            self.hosts[host.host_id] = host
        for number in range(dice.randint(0, 2)):
            self.hosts[f"r{number}"] = Host(f"r{number}", physical(dice), known=True)

    def room(self, host_id: str) -> Amounts:
        host = self.hosts[host_id]
        return minus(minus(host.physical, host.used()), self.containers(host_id))


def physical(dice: random.Random) -> Amounts:
    found = {"vcore": dice.randint(4, 12) * 1000, "memory": dice.randint(4, 16)}
    if dice.random() < 0.3:
        found["gpu"] = dice.randint(1, 4)
    return found


class Manager:
    """One other manager: the source's name, and what it has now."""

    def __init__(self, name: str, dice: random.Random, tally: Counter[str]) -> None:
        self.name = name
        self.dice = dice
        self.tally = tally

    @property
    def objects(self) -> dict[Key, ExternalObject]:
        """Everything that it has, by kind and id."""
        return {(kind_of(each), id_of(each)): each for each in self.having()}

    def having(self) -> list[ExternalObject]:
        raise NotImplementedError

    def plan(self) -> None:
        raise NotImplementedError

    def hear(self, returned: set[str]) -> None:
        """These offers were given back."""

    def _did(self, what: str) -> None:
        self.tally[f"{self.name}: {what}"] += 1


class VmManager(Manager):
    """Runs VMs on hosts, where there really is room; some hosts only it has."""

    def __init__(self, world: World, dice: random.Random, tally: Counter[str]) -> None:
        super().__init__(VMS, dice, tally)
        self.world = world
        self.whole = dice.random() < 0.4
        # How VMs are told: each of them, or what they use in sum; and whether they count in queues.
        self.one_by_one = dice.random() < 0.75
        self.owners = dict(zip(TENANTS, TENANT_QUEUES, strict=True)) if dice.random() < 0.5 else {}
        self.tenants = dict(self.owners)
        self.orphans = dice.random() < 0.3  # VMs are told of before their hosts and owners, or after
        self.quotas: dict[str, Amounts] = {}
        self._number = 0
        self._hosts = len(world.hosts)
        for _ in range(6):
            self._start()

    def having(self) -> list[ExternalObject]:
        found: list[ExternalObject] = [ExternalQueue(path, dict(most)) for path, most in self.quotas.items()]
        for tenant, queue in self.tenants.items():
            found.append(ExternalApplication(tenant, queue, "vic", ("virtual",)))
        for host in self.world.hosts.values():
            if host.managed:
                found.append(self._told(host))
                vms = host.vms.values() if self.one_by_one else ()
                found += [ExternalAllocation(vm.key, host.host_id, dict(vm.size), vm.tenant, vm.priority) for vm in vms]
        return found

    def _told(self, host: Host) -> ExternalNode:
        used = host.overhead if self.one_by_one else host.used()
        attributes = {"rack": host.rack, "vm.manager": "yes"}
        # (What it does not say of a type the RM's word stands for: a GPU that was taken out it must say.)
        has = dict(host.physical) if self.whole else {name: host.physical.get(name, 0) for name in TYPES}
        return ExternalNode(
            host.host_id,
            has,
            {name: value for name, value in used.items() if value},
            attributes,
            not host.maintained,
            self.whole,
            host.brought,
        )

    def plan(self) -> None:
        dice = self.dice
        for _ in range(dice.choice([0, 1, 1, 2, 3])):
            fate = dice.random()
            if fate < 0.38:
                self._start()
            elif fate < 0.58:
                self._stop()
            elif fate < 0.70:
                self._resize()
            elif fate < 0.78:
                self._rebuild()
            elif fate < 0.84:
                self._maintain()
            elif fate < 0.89:
                self._add_host()
            elif fate < 0.93:
                self._remove_host()
            elif fate < 0.96:
                self._set_quota()
            elif fate < 0.975:
                self._let_go()
            else:
                self._move()

    def _some(self) -> Host | None:
        found = [host for host in self.world.hosts.values() if host.managed]
        return self.dice.choice(found) if found else None

    def _size(self, host: Host) -> Amounts:
        size = {"vcore": self.dice.randint(1, 4) * 1000, "memory": self.dice.randint(1, 5)}
        if host.physical.get("gpu") and self.dice.random() < 0.3:
            size["gpu"] = 1
        return size

    def _start(self) -> None:
        host = self._some()
        if host is None or host.maintained:
            return
        size = self._size(host)
        if covers(self.world.room(host.host_id), size):
            self._number += 1
            tenant = self.dice.choice(list(self.owners)) if self.owners and self.dice.random() < 0.5 else ""
            key = f"vm-{self._number}"
            host.vms[key] = Vm(key, size, tenant, self.dice.choice([0, 0, 5]))
            self._did("starts a VM")

    def _stop(self) -> None:
        host = self._some()
        if host is not None and host.vms:
            del host.vms[self.dice.choice(list(host.vms))]
            self._did("stops a VM")

    def _resize(self) -> None:
        host = self._some()
        if host is None or not host.vms:
            return
        vm = host.vms[self.dice.choice(list(host.vms))]
        size = self._size(host)
        if covers(plus(self.world.room(host.host_id), vm.size), size):
            vm.size = size
            self._did("resizes a VM")

    def _move(self) -> None:
        """Moves a VM to another host. It keeps its key."""
        host, other = self._some(), self._some()
        if host is None or other is None or host is other or not host.vms:
            return
        vm = host.vms[self.dice.choice(list(host.vms))]
        if covers(self.world.room(other.host_id), vm.size):
            del host.vms[vm.key]
            other.vms[vm.key] = vm
            self._did("moves a VM")

    def _rebuild(self) -> None:
        """Changes a host's hardware. VMs that no longer fit stop."""
        host = self._some()
        if host is None:
            return
        host.physical = physical(self.dice)
        while host.vms and not covers(host.physical, host.used()):
            del host.vms[next(iter(host.vms))]
        self._did("rebuilds a host")

    def _maintain(self) -> None:
        host = self._some()
        if host is not None:
            host.maintained = not host.maintained
            self._did("drains a host" if host.maintained else "ends maintenance")

    def _add_host(self) -> None:
        hosts = self.world.hosts
        if len(hosts) < 9:
            host = Host(f"h{self._hosts}", physical(self.dice), managed=True, brought=True)
            host.known = self.dice.random() < 0.3
            self._hosts += 1
            hosts[host.host_id] = host
            self._did("adds a host")

    def _remove_host(self) -> None:
        """Removes a host from the manager. A host that only it had is gone."""
        host = self._some()
        if host is None:
            return
        host.vms.clear()
        host.managed = False
        if not host.known:
            host.physical, host.overhead = {}, {}
        self._did("removes a host")

    def _set_quota(self) -> None:
        path = self.dice.choice(QUOTA_QUEUES)
        if path in self.quotas and self.dice.random() < 0.5:
            del self.quotas[path]
            self._did("lifts a quota")
            return
        self.quotas[path] = {"vcore": self.dice.randint(2, 12) * 1000}
        if self.dice.random() < 0.4:
            self.quotas[path]["memory"] = self.dice.randint(2, 16)
        self._did("sets a quota")

    def _let_go(self) -> None:
        """Forgets an owner of VMs for a while, or moves it to another queue. Its VMs keep running."""
        if not self.owners:
            return
        tenant = self.dice.choice(list(self.owners))
        if tenant in self.tenants and self.dice.random() < 0.6:
            del self.tenants[tenant]
            self._did("forgets an owner of VMs")
        else:
            self.tenants[tenant] = self.dice.choice([*TENANT_QUEUES, "root.c", "root.none.such"])
            self._did("has an owner in another queue")


class RackManager(Manager):
    """Knows power and repairs: it restricts hosts, and brings none. It speaks of hosts that nobody has, too."""

    def __init__(self, world: World, dice: random.Random, tally: Counter[str]) -> None:
        super().__init__(RACK, dice, tally)
        self.world = world
        self.caps: dict[str, ExternalNode] = {}

    def having(self) -> list[ExternalObject]:
        return list(self.caps.values())

    def plan(self) -> None:
        dice = self.dice
        if dice.random() < 0.7:
            return
        host_id = dice.choice([*self.world.hosts, "h0", "nowhere"])
        if host_id in self.caps and dice.random() < 0.5:
            del self.caps[host_id]
            self._did("lifts a cap")
            return
        fate = dice.random()
        capacity = None if fate < 0.3 else {"vcore": dice.randint(2, 10) * 1000}
        attributes = {"rack": "r", "power": "low"}
        occupied = {"memory": dice.randint(1, 3)} if dice.random() < 0.3 else {}
        node = ExternalNode(host_id, capacity, occupied, attributes, dice.random() < 0.9, False, False)
        self.caps[host_id] = node
        self._did("sets a cap")


class Lender(Manager):
    """A framework that lends parts of its own hosts, takes them back, and forgets what it got back."""

    def __init__(self, world: World, dice: random.Random, tally: Counter[str]) -> None:
        super().__init__(LENT, dice, tally)
        self.world = world
        self.offers: dict[str, ExternalOffer] = {}
        self.returned: set[str] = set()
        self.speaks_of_nodes = dice.random() < 0.3
        self.hosts = [Host(f"m{number}", physical(dice)) for number in range(dice.randint(1, 2))]
        self._number = 0

    def having(self) -> list[ExternalObject]:
        found: list[ExternalObject] = list(self.offers.values())
        if self.speaks_of_nodes:
            found += [ExternalNode(host.host_id, None, {}, {"framework": "yes"}) for host in self.hosts]
        return found

    def lent(self, host_id: str) -> Amounts:
        """The resources that it lent and that were not returned."""
        sums: Amounts = {}
        for offer in self.offers.values():
            if offer.node_id == host_id and offer.offer_id not in self.returned:
                sums = plus(sums, offer.quantities)
        return sums

    def hear(self, returned: set[str]) -> None:
        self.returned |= returned & self.offers.keys()

    def plan(self) -> None:
        dice = self.dice
        fate = dice.random()
        if fate < 0.30:
            self._offer()
        elif fate < 0.42:
            self._revoke()
        elif fate < 0.46:
            self._snatch()
        for offer_id in sorted(self.returned):
            if dice.random() < 0.4:
                del self.offers[offer_id]
                self.returned.discard(offer_id)
                self._did("forgets an offer")

    def _offer(self) -> None:
        host = self.dice.choice(self.hosts)
        room = minus(host.physical, self.lent(host.host_id))
        size = {"vcore": self.dice.randint(1, 5) * 1000, "memory": self.dice.randint(1, 6)}
        if not covers(room, size):
            return
        self._number += 1
        idle_ns = self.dice.choice([0, 0, 20, 60]) * SECOND_NS
        offer = ExternalOffer(f"o-{self._number}", host.host_id, size, {"lender": "yes"}, idle_ns)
        self.offers[offer.offer_id] = offer
        self._did("offers")

    def _revoke(self) -> None:
        open_ = [each for each in self.offers.values() if not each.revoked and each.offer_id not in self.returned]
        if open_:
            each = self.dice.choice(open_)
            self.offers[each.offer_id] = ExternalOffer(
                each.offer_id,
                each.node_id,
                each.quantities,
                each.attributes,
                each.idle_ns,
                True,
                self.dice.choice([0, 10, 60]) * SECOND_NS,
            )
            self._did("revokes")

    def _snatch(self) -> None:
        if self.offers:
            offer_id = self.dice.choice(list(self.offers))
            del self.offers[offer_id]
            self.returned.discard(offer_id)
            self._did("snatches an offer")


class LicenceServer(Manager):
    """Has licences, some of which others use."""

    def __init__(self, dice: random.Random, tally: Counter[str]) -> None:
        super().__init__(LICENCES, dice, tally)
        self.pools = {name: ExternalPool(name, dice.randint(1, 5)) for name in POOLS}

    def having(self) -> list[ExternalObject]:
        return list(self.pools.values())

    def plan(self) -> None:
        dice = self.dice
        if dice.random() < 0.8:
            return
        name = dice.choice(POOLS)
        if name in self.pools and dice.random() < 0.15:
            del self.pools[name]
            self._did("takes a pool away")
            return
        quantity = dice.randint(0, 6)
        self.pools[name] = ExternalPool(name, quantity, dice.randint(0, quantity) if dice.random() < 0.5 else 0)
        self._did("changes a pool")
