"""Two-level scheduling in the words of the event handler framework: a central allocator lends resources that are
currently unused.

"Because only one framework is examining a resource at a time, resource conflicts is avoided": here Muster is one of two
frameworks on the same hosts. The allocator knows nothing of Muster but what its records say; whatever happens, both
together never use more of a host than there is.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from builders import SECOND_NS
from muster_bus.topics import parse_state_key
from muster_core.external.model import ExternalKind, ExternalOffer, ExternalPool, OfferState
from muster_core.model.commands import Termination
from muster_core.model.outcome import ReleasedAllocation
from muster_state import state_codec
from outside import LEAVES, Outside

MESOS = "mesos"


class Allocator:
    """The central allocator: hosts, what it lent of them to Muster, and what the other framework uses.

    :ivar lent: by offer, its host and how many vcores; as long as it was not given back.
    """

    def __init__(self, muster: Outside, hosts: dict[str, int]) -> None:
        self.muster = muster
        self.hosts = hosts
        self.lent: dict[str, tuple[str, int]] = {}
        self.others = dict.fromkeys(hosts, 0)
        self.revoked: dict[str, int] = {}
        self._offers = 0

    def unused(self, host: str) -> int:
        """Resources that are neither lent nor used by the other framework."""
        return self.hosts[host] - self.others[host] - sum(size for at, size in self.lent.values() if at == host)

    def lend(self, host: str, size: int, *, idle_s: int = 0) -> str:
        """Lends a part of what is unused."""
        assert size <= self.unused(host)
        self._offers += 1
        offer_id = f"o{self._offers}"
        self.lent[offer_id] = (host, size)
        self.muster.says(MESOS, self._offer(offer_id, idle_s=idle_s))
        self.hear()
        return offer_id

    def want_back(self, offer_id: str, grace_s: int) -> None:
        self.revoked[offer_id] = grace_s
        self.muster.says(MESOS, self._offer(offer_id))
        self.hear()

    def use(self, host: str, size: int) -> None:
        """The other framework takes a part of what is unused."""
        assert size <= self.unused(host)
        self.others[host] += size

    def hear(self) -> None:
        """Forgets the offers that Muster's records return."""
        for offer_id in list(self._given_back()):
            host, size = self.lent.pop(offer_id)
            offer = ExternalOffer(offer_id, host, {"vcore": size})
            self.revoked.pop(offer_id, None)
            self.muster.forgets(MESOS, offer)

    def _offer(self, offer_id: str, *, idle_s: int = 0) -> ExternalOffer:
        host, size = self.lent[offer_id]
        grace_s = self.revoked.get(offer_id)
        return ExternalOffer(
            offer_id,
            host,
            {"vcore": size},
            idle_ns=idle_s * SECOND_NS,
            revoked=grace_s is not None,
            grace_ns=(grace_s or 0) * SECOND_NS,
        )

    def _given_back(self) -> Iterator[str]:
        for key, value in self.muster.kept.items():
            _, kind, parts = parse_state_key(key)
            about_us = kind == "ext" and parts[1:3] == (MESOS, ExternalKind.OFFER) and parts[3] in self.lent
            if about_us and state_codec.offer_state_of(value) is OfferState.RETURNED:
                yield parts[3]

    def check(self) -> None:
        """Fails if Muster's RM and the other framework together exceed a host."""
        for host, size in self.hosts.items():
            ours = sum(
                each.shape.quantities["vcore"]
                for app in self.muster.partition.apps.values()
                for each in app.allocations.values()
                if each.node_id == host
            )
            assert ours + self.others[host] <= size, f"{host}: {ours} + {self.others[host]} of {size}"


def pair(hosts: dict[str, int]) -> tuple[Outside, Allocator]:
    muster = Outside(LEAVES).having({}, {"job": "root.a", "service": "root.b"})
    return muster, Allocator(muster, hosts)


def test_a_framework_offers_and_revokes_without_overcommitment() -> None:
    muster, mesos = pair({"agent-1": 8, "agent-2": 8})
    # 1. Nothing is offered: nothing runs.
    muster.ask("job", "task", wanted=6, vcore=2)
    assert muster.pending("job") == {"task": "NO_NODES"}
    # 2. The other framework uses a part; what is left is lent, and used up to the last vcore.
    mesos.use("agent-1", 4)
    first = mesos.lend("agent-1", 4)
    second = mesos.lend("agent-2", 8)
    assert len(muster.placed("job")) == 6
    mesos.check()
    # 3. The other framework wants more of the second host. Nothing new goes there, what runs may end by itself.
    mesos.want_back(second, grace_s=30)
    muster.ask("service", "late", vcore=2)
    assert "late" in muster.pending("service")
    assert mesos.unused("agent-2") == 0
    # 4. The time is over: what is left there is told to go, asked once, and reminded.
    out = muster.wait(30)
    told = [fact for fact in out.facts if isinstance(fact, ReleasedAllocation)]
    assert {fact.termination for fact in told} == {Termination.PREEMPTED_BY_SCHEDULER}
    assert len(told) == 4
    mesos.hear()
    assert mesos.unused("agent-2") == 0, "an offer is given back when it is free, not at the request"
    # 5. The RM confirms; the offer goes back, and the host is the other framework's.
    muster.release("job", "task", Termination.PREEMPTED_BY_SCHEDULER)
    mesos.hear()
    assert mesos.unused("agent-2") == 8
    mesos.use("agent-2", 8)
    mesos.check()
    assert set(muster.partition.nodes) == {"agent-1"}
    assert set(mesos.lent) == {first}
    muster.check_folds()


def test_an_idle_offer_is_returned_and_offered_to_the_other() -> None:
    muster, mesos = pair({"agent-1": 8})
    mesos.lend("agent-1", 4, idle_s=60)
    mesos.lend("agent-1", 4, idle_s=60)
    muster.ask("job", "task", vcore=3)
    muster.wait(60)
    mesos.hear()
    assert mesos.unused("agent-1") == 4
    mesos.use("agent-1", 4)
    mesos.check()
    assert muster.placed("job") == {"task": "agent-1"}
    muster.release("job", "task")
    muster.wait(60)
    mesos.hear()
    assert (mesos.lent, mesos.unused("agent-1")) == ({}, 4)
    assert not muster.partition.nodes


def test_licences_are_one_amount_for_all_hosts() -> None:
    muster, mesos = pair({"agent-1": 8, "agent-2": 8})
    mesos.lend("agent-1", 8)
    mesos.lend("agent-2", 8)
    muster.says("flex", ExternalPool("license", 5, occupied=2))
    muster.ask("job", "task", wanted=2, vcore=1, license=1)
    muster.ask("service", "task", wanted=2, vcore=1, license=1)
    assert (len(muster.placed("job")), len(muster.placed("service"))) == (2, 1)
    assert muster.pending("service") == {"task": "QUEUE_MAX"}
    muster.says("flex", ExternalPool("license", 5, occupied=1))
    assert len(muster.placed("service")) == 2
    muster.check_folds()


@pytest.mark.parametrize("seed", range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "6"))))
def test_two_frameworks_never_use_more_than_the_capacity(seed: int) -> None:
    rng = random.Random(seed)
    muster, mesos = pair({f"agent-{n}": rng.randint(4, 10) for n in range(3)})
    agents = list(mesos.hosts)
    lent = used = placed = 0
    for step in range(60):
        host = rng.choice(agents)
        unused = mesos.unused(host)
        match rng.randrange(8):
            case 0 | 1 if unused:
                mesos.lend(host, rng.randint(1, unused), idle_s=rng.choice([0, 10]))
                lent += 1
            case 2 if unused:
                mesos.use(host, rng.randint(1, unused))
                used += 1
            case 3:
                mesos.others[host] = rng.randint(0, mesos.others[host])
            case 4 if mesos.lent:
                mesos.want_back(rng.choice(list(mesos.lent)), rng.choice([0, 5, 20]))
            case 5:
                for app in list(muster.partition.apps.values()):
                    for each in list(app.allocations.values()):
                        if rng.random() < (0.8 if each.releasing else 0.2):
                            how = Termination.PREEMPTED_BY_SCHEDULER if each.releasing else Termination.STOPPED_BY_RM
                            muster.release(app.app_id, each.key, how)
            case 6 if rng.random() < 0.3:
                muster.restart(seed=step)
            case _:
                muster.ask(rng.choice(["job", "service"]), f"k{step}", vcore=rng.randint(1, 3))
                placed = max(placed, sum(len(app.allocations) for app in muster.partition.apps.values()))
        mesos.hear()
        mesos.check()
        muster.wait(rng.choice([0, 1, 5]))
        mesos.hear()
        mesos.check()
        if step % 6 == 0:
            muster.check_folds()
    assert lent > 3, "no offer was used: the test proves nothing"
    assert used, "the other manager used nothing"
    assert placed > 1, "Muster placed nothing"
