"""The differences from YuniKorn's core that a play may show. Each is a row of docs/differences.md.

A difference that no rule admits is a defect. There are three ways in which a row is respected:

- a rule here admits what a resource manager hears differently;
- a setting makes Muster decide as YuniKorn does (``SETTINGS``), where it has one;
- the plays do not reach it: ``kinds.py`` says so where it leaves something out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from plays.play import NODES, Play, Step


class Item(NamedTuple):
    """One thing that the resource manager heard, or that was seen."""

    kind: str
    name: str
    value: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


class Difference(NamedTuple):
    """An item that only one of the systems has.

    :ivar step: its number, from 0; -1: the registration.
    :ivar only: "YuniKorn" or "Muster".
    """

    step: int
    only: str
    item: Item

    def __str__(self) -> str:
        return f"step {self.step + 1}, only {self.only}: {self.item}"


class Scene(NamedTuple):
    """What was before a step.

    :ivar core_runs: the node of each allocation that YuniKorn's core has, by key.
    :ivar replacing: the applications with a placeholder that a real ask is about to replace.
    """

    play: Play
    number: int
    step: Step
    core_runs: Mapping[str, str]
    replacing: frozenset[str]


Admits = Callable[[Scene, Difference, Sequence[Difference]], bool]


class Rule(NamedTuple):
    """A kind of difference.

    :ivar row: the subject of its row in docs/differences.md.
    :ivar ends: what follows cannot be compared, because the systems decided differently.
    """

    row: str
    admits: Admits
    ends: bool = False


# Rows that a setting of Muster respects: the plays' configurations have it.
SETTINGS = {
    "gang.start": "the start of a gang",
    "preemption.priority": "preemption by priority within a leaf",
    "reservation.enabled": "`DISABLE_RESERVATION` (environment)",
    "optout": "allocations that opted out (`allowPreemptSelf: false`)",
}


def _node_answer(scene: Scene, it: Difference, _: Sequence[Difference]) -> bool:
    if it.only != "Muster" or scene.step.kind != NODES or not it.item.kind.startswith("node "):
        return False
    actions = [each["action"] for each in scene.step.message["nodes"] if each["nodeID"] == it.item.name]
    return bool(actions) and not any(action.startswith("CREATE") for action in actions)


def _nothing_released(scene: Scene, it: Difference, _: Sequence[Difference]) -> bool:
    released = scene.step.message.get("releases", {}).get("allocationsToRelease", ())
    is_acknowledgement = it.only == "Muster" and it.item.kind == "released" and it.item.value == "STOPPED_BY_RM"
    is_named = any(each["allocationKey"] == it.item.name for each in released)
    return is_acknowledgement and is_named and it.item.name not in scene.core_runs


def _reported_again(scene: Scene, it: Difference, _: Sequence[Difference]) -> bool:
    reported = {each["allocationKey"]: each.get("nodeID") for each in scene.step.message.get("allocations", ())}
    is_echo = it.only == "Muster" and it.item.kind == "allocated" and reported.get(it.item.name) == it.item.value
    return is_echo and scene.core_runs.get(it.item.name) == it.item.value


def _removed(scene: Scene, it: Difference, _: Sequence[Difference]) -> bool:
    gone = [each["applicationID"] for each in scene.step.message.get("remove", ())]
    is_end = it.item.kind == "state" and it.item.value in ("Completing", "Completed")
    return it.only == "YuniKorn" and is_end and it.item.name in gone


def _is_overfull(scene: Scene) -> bool:
    """Whether a node has more than its capacity: it became smaller, or more was reported."""
    capacity: dict[str, Mapping[str, int]] = {}
    sizes: dict[str, Mapping[str, int]] = {}
    for step in scene.play.steps[: scene.number + 1]:
        for each in step.message.get("nodes", ()):
            capacity[each["nodeID"]] = each.get("schedulableResource") or capacity.get(each["nodeID"], {})
        for each in step.message.get("allocations", ()):
            sizes[each["allocationKey"]] = each["resourcePerAlloc"]
    used: Counter[tuple[str, str]] = Counter()
    for key, where in scene.core_runs.items():
        used.update({(where, name): amount for name, amount in sizes.get(key, {}).items()})
    return any(amount > capacity.get(where, {}).get(name, 0) for (where, name), amount in used.items())


def _overfull(scene: Scene, it: Difference, others: Sequence[Difference]) -> bool:
    """What YuniKorn does not allocate, and the state of its application."""
    more = [each for each in others if each.item.kind == "allocated"]
    is_meant = it.item.kind == "allocated" or (it.item.kind == "state" and it.item.value in ("Running", "Accepted"))
    return is_meant and bool(more) and all(each.only == "Muster" for each in more) and _is_overfull(scene)


def _gang_runs(scene: Scene, it: Difference, _: Sequence[Difference]) -> bool:
    return scene.play.kind == "gangs" and it.item.kind == "state" and it.item.value == "Running"


def _draining_replaced(scene: Scene, it: Difference, _: Sequence[Difference]) -> bool:
    """A placeholder on a draining node is one that the core replaces there."""
    draining: set[str] = set()
    for step in scene.play.steps[: scene.number + 1]:
        for each in step.message.get("nodes", ()):
            (draining.add if each["action"] == "DRAIN_NODE" else draining.discard)(each["nodeID"])
    held = {key for key, where in scene.core_runs.items() if where in draining and key.endswith("-p")}
    is_replacement = it.item.kind == "released" and it.item.value == "PLACEHOLDER_REPLACED"
    return bool(held) and (is_replacement or it.item.kind == "allocated")


def _replacing(scene: Scene, it: Difference, _: Sequence[Difference]) -> bool:
    """YuniKorn's real ask is no longer pending and not yet allocated: without another one its application is idle."""
    return (
        it.only == "YuniKorn"
        and it.item == Item("state", it.item.name, "Completing")
        and (it.item.name in scene.replacing)
    )


def _completes_at_once(scene: Scene, it: Difference, others: Sequence[Difference]) -> bool:
    ended = [each.item.name for each in others if each.only == "YuniKorn" and each.item.value == "Completed"]
    is_state = it.item.kind == "state" and it.item.value in ("Completing", "Completed")
    return scene.play.kind == "gangs" and is_state and it.item.name in ended


RULES = (
    Rule("answers to UPDATE, DRAIN_NODE, DRAIN_TO_SCHEDULABLE, DECOMISSION", _node_answer),
    Rule("releases of asks, and of unknown objects", _nothing_released),
    Rule("an allocation on a node (foreign ones too) that is reported again", _reported_again),
    Rule("states of an application that the RM removes", _removed),
    Rule("a placeholder on a draining node", _draining_replaced, ends=True),
    Rule("a node with more than its capacity (it became smaller, or more was reported)", _overfull, ends=True),
    Rule("a Completing gang that loses its last placeholder", _completes_at_once, ends=True),
    Rule("a real ask while its placeholder is releasing", _replacing),
    Rule("when a gang's application is Running", _gang_runs),
)
