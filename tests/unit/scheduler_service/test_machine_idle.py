"""Waiting asks cost nothing while nothing changes: 20,000 asks that do not fit leave the machine idle.

YuniKorn tries each of them on each node ten times a second. The tests count deadlines and lines, not seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from muster_bus.log import Record
from muster_bus.topics import Topics
from muster_core import invariants
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.machine import SchedulerMachine
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, SECOND_NS

ASKS, APPLICATIONS, NODES = 20_000, 40, 100
CONFIG = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        limits: [{limit: each, users: ['*'], maxresources: {memory: 5000}, maxapplications: 60}]
        queues:
          - {name: filler}
          - {name: fifo, resources: {guaranteed: {memory: 50}}, properties: {preemption.delay: 10s}}
          - {name: fair, properties: {application.sort.policy: fair}}
          - {name: small, resources: {max: {memory: 3}}}
"""
LEAVES = ["root.fifo", "root.fair", "root.small"]


class Quiet:
    """A machine without a log: the test only counts its records."""

    def __init__(self) -> None:
        self.machine = SchedulerMachine(Topics(partitions=1), lambda: "uuid")
        self.now_ns = 1_000 * SECOND_NS
        self.machine.finish_fold(self.now_ns)
        self.written = self.ticks = 0
        self._offset = 0

    def send(self, body: object) -> None:
        value = make.envelope(body).SerializeToString()
        record = Record(self.machine._topics.requests, 0, self._offset, 0, RM.encode(), value)
        self._offset += 1
        self.written += len(self.machine.apply([record], self.now_ns))

    def wait(self, seconds: float) -> None:
        """Tick whenever a tick is due, as the service does."""
        until_ns = self.now_ns + round(seconds * SECOND_NS)
        for _ in range(10_000):
            due_ns = self.machine.next_deadline_ns()
            if due_ns is None or due_ns > until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = max(self.now_ns, due_ns)
            self.ticks += 1
            self.written += len(self.machine.tick(self.now_ns))
        raise AssertionError("the machine never comes to rest")


def _item(number: int) -> si.Allocation:
    tags = {"creationTime": "10"} if number % 3 == 0 else {}
    if number % 50 == 49:
        tags["yunikorn.apache.org/requiredNode"] = f"n{number % (NODES + 5)}"  # it does not know some of them
    size = 4 + number % 7 if number % 11 else 1_000_000
    made = make.allocation(f"x{number % APPLICATIONS}", f"k{number}", tags=tags, memory=size, vcore=1 + number % 60)
    made.priority = number % 5
    made.preemptionPolicy.allowPreemptOther = number % 2 == 0
    return made


@pytest.fixture(scope="module")
def waiting() -> Quiet:
    quiet = Quiet()
    quiet.send(make.registration(CONFIG))
    for number in range(NODES):
        quiet.send(make.node(f"n{number}", memory=10, vcore=1000))
    quiet.send(_application("filler", "root.filler"))
    quiet.send(make.asks(*(make.allocation("filler", f"f{number}", memory=9) for number in range(NODES))))
    for number in range(APPLICATIONS):
        quiet.send(_application(f"x{number}", LEAVES[number % len(LEAVES)]))
    quiet.send(make.asks(*map(_item, range(ASKS))))
    # Each ask gets its time to reserve and preempt, and the retries that follow.
    quiet.wait(600)
    core = quiet.machine.rms[RM].core
    assert core.exhausted
    invariants.check(core, exhausted=True)
    partition = core.partitions["default"]
    assert sum(len(app.asks) for app in partition.apps.values()) == ASKS
    assert sum(len(queue.waitlists) for queue in partition.queues.values()) > 500
    assert sum(bool(node.reservations) for node in partition.nodes.values()) > NODES // 2
    return quiet


def _application(app_id: str, queue: str) -> si.ApplicationRequest:
    made = make.application(app_id, queue)
    made.new[0].ugi.user = f"user-{app_id}"
    return made


def test_nothing_is_due_while_nothing_changes(waiting: Quiet) -> None:
    ticks, written = waiting.ticks, waiting.written
    waiting.wait(2_000)
    assert (waiting.ticks, waiting.written) == (ticks, written)


def test_an_early_tick_looks_at_no_rm(waiting: Quiet) -> None:
    calls = 0

    def trace(_frame: FrameType, event: str, _: object) -> Callable[..., object]:
        nonlocal calls
        calls += event in ("line", "call")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(100):
            assert waiting.machine.tick(waiting.now_ns) == []
            waiting.machine.next_deadline_ns()
    finally:
        sys.settrace(before)
    assert calls < 100 * 100, calls


def test_a_change_that_concerns_no_waiting_ask_is_cheap(waiting: Quiet) -> None:
    """A node on which no ask fits and an application without asks start no new retry."""
    waiting.send(make.node("tiny", vcore=1))
    waiting.send(_application("empty", "root.filler"))
    waiting.wait(600)
    ticks = waiting.ticks
    waiting.wait(300)
    assert waiting.ticks == ticks
