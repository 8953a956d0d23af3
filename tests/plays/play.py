"""A play: a queue configuration, and what a resource manager does with it, one step after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# What a resource manager says on its streams. CONFIRM: it confirms what it was told to end. ELAPSE: delays pass, and it
# confirms, in rounds.
NODES, APPLICATIONS, ALLOCATIONS = "UpdateNode", "UpdateApplication", "UpdateAllocation"
ELAPSE, CONFIRM = "elapse", "confirm"
DELAY = "1s"
# Longer than the delays of preemption (1 s) and reservations (2 s), and than the pause after a search without victims.
ELAPSED_S = 16
# What a round of preemption frees, the next one may use. No play has as many asks that preempt.
ROUNDS = 20


@dataclass(frozen=True)
class Step:
    """One step. The next one begins when nothing is left to decide.

    :ivar message: the fields of the request, without the rmID.
    """

    kind: str
    message: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Play:
    """What both systems get.

    :ivar reserves: whether old asks reserve nodes.
    :ivar partition: the partition's configuration.
    :ivar mine: further keys of the partition for Muster, that make it behave as YuniKorn where a setting does.
    """

    kind: str
    seed: int
    partition: Mapping[str, Any]
    mine: Mapping[str, Any]
    steps: tuple[Step, ...]
    reserves: bool = False

    def config(self, *, muster: bool) -> str:
        """The text of the queue configuration. (JSON is YAML.)"""
        mine = {"reservation": {"enabled": self.reserves}, **self.mine}
        partition = {**self.partition, **(mine if muster else {})}
        return json.dumps({"partitions": [partition]}, indent=1)

    def elapsed_config(self) -> str:
        """The configuration for YuniKorn while delays are over."""
        return self.config(muster=False).replace(f'"preemption.delay": "{DELAY}"', '"preemption.delay": "1ns"')

    def with_steps(self, steps: tuple[Step, ...]) -> Play:
        return replace(self, steps=steps)

    @property
    def last_application(self) -> int:
        """The last step that has applications; -1: none has."""
        return max((number for number, step in enumerate(self.steps) if step.kind == APPLICATIONS), default=-1)

    def words(self) -> str:
        """The play for a reader."""
        lines = [f"{self.kind} {self.seed}", "configuration:"]
        lines += [f"  {line}" for line in json.dumps(dict(self.partition), indent=1).splitlines()]
        if self.mine:
            lines.append(f"  for Muster also: {json.dumps(dict(self.mine))}")
        for number, step in enumerate(self.steps):
            lines += [f"{number + 1}. {line}" if not at else f"   {line}" for at, line in enumerate(words_of(step))]
        return "\n".join(lines)


def words_of(step: Step) -> list[str]:
    """A step in words: a line for each item."""
    if step.kind == ELAPSE:
        return [f"until nothing happens: {ELAPSED_S} s pass, and the RM confirms all releases that it was asked for"]
    if step.kind == CONFIRM:
        return ["the RM confirms all releases that it was asked for"]
    return [line for name, items in _lists(step.message) for line in (_item_words(name, item) for item in items)]


def _lists(message: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for name, value in message.items():
        if isinstance(value, Mapping):
            yield from _lists(value)
        else:
            yield name, value


def _item_words(name: str, item: Mapping[str, Any]) -> str:
    left = {key: value for key, value in item.items() if key != "partitionName"}
    verb = {
        "new": "application",
        "remove": "remove application",
        "nodes": "node",
        "allocations": "report" if "nodeID" in item else "ask",
        "allocationsToRelease": "release",
    }.get(name, name)
    return f"{verb} " + ", ".join(f"{key} {_value_words(value)}" for key, value in left.items())


def _value_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value_words(each)}" for key, each in value.items()) + "}"
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)


# ---- what a resource manager says ------------------------------------------------------------------------------------


def nodes(*items: Mapping[str, Any]) -> Step:
    return Step(NODES, {"nodes": list(items)})


def node(name: str, action: str = "CREATE", **amounts: int) -> dict[str, Any]:
    item: dict[str, Any] = {"nodeID": name, "action": action}
    return {**item, "schedulableResource": amounts} if amounts else item


def applications(*items: Mapping[str, Any]) -> Step:
    return Step(APPLICATIONS, {"new": list(items)})


def application(name: str, queue: str, user: str = "ann", groups: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    ugi = {"user": user, **({"groups": list(groups)} if groups else {})}
    return {"applicationID": name, "queueName": queue, "partitionName": "default", "ugi": ugi, **more}


def removal(name: str) -> Step:
    return Step(APPLICATIONS, {"remove": [{"applicationID": name, "partitionName": "default"}]})


def allocations(*items: Mapping[str, Any]) -> Step:
    return Step(ALLOCATIONS, {"allocations": list(items)})


def ask(key: str, app: str, amounts: Mapping[str, int], **more: Any) -> dict[str, Any]:
    """An ask; with a ``nodeID`` an allocation that is reported."""
    policy = {"allowPreemptSelf": True, "allowPreemptOther": True}
    item = {"allocationKey": key, "applicationID": app, "partitionName": "default", "resourcePerAlloc": dict(amounts)}
    return {**item, "preemptionPolicy": policy, **more}


def releases(*keys: tuple[str, str], how: str = "STOPPED_BY_RM") -> Step:
    """Releases of (application, key)."""
    items = [
        {"partitionName": "default", "applicationID": app, "allocationKey": key, "terminationType": how}
        for app, key in keys
    ]
    return Step(ALLOCATIONS, {"releases": {"allocationsToRelease": items}})


def confirm() -> Step:
    return Step(CONFIRM)


def elapse() -> Step:
    return Step(ELAPSE)
