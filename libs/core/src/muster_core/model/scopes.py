"""The RM's callback policy, and the scopes in which proposals must be alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag

SECOND_NS = 1_000_000_000


class Scope(IntFlag):
    """A scope in which proposals must be alone: no other proposal is open beside one (``exclusivity.py``).

    Several scopes may hold together.
    """

    ALL = 0
    NODE = 1
    TASK_GROUP = 2
    APPLICATION = 4
    ONE = 8


# The values of an ask's tag.
SCOPES = {
    "all": Scope.ALL,
    "node": Scope.NODE,
    "task-group": Scope.TASK_GROUP,
    "application": Scope.APPLICATION,
    "one": Scope.ONE,
}


SCOPE_TAG = "muster.callbacks.open"


def scope_of(tags: Mapping[str, str]) -> Scope:
    """The scope from an ask's tags. An unreadable tag is ignored (asks with such a tag are rejected before)."""
    tag = tags.get(SCOPE_TAG) if tags else None
    return Scope.ALL if tag is None else SCOPES.get(tag.strip().lower(), Scope.ALL)


@dataclass(frozen=True, slots=True)
class CallbackPolicy:
    """The decisions before which the RM wants to be asked, the states of which it wants to be notified, and the rule
    while it is not connected.

    :param predicates: the RM is asked before an allocation, a reservation, a replacement.
    :param preemption: the RM is asked before a preemption.
    :param states: the RM is notified of asks that are skipped, that get a reservation, or that fit nowhere.
    :param connected: the RM's stream is open; ``since_ns``: since when it is open, or closed.
    :param timeout_ns: the time for one answer.
    :param retry_ns: the first pause before refusals are forgotten.
    :param grace_ns: how long questions continue after the stream was lost.
    :param waits: without a stream, no ask is placed; False: every ask that fits is placed.
    :param alone: the scopes with one proposal at a time.
    """

    predicates: bool = False
    preemption: bool = False
    states: bool = False
    connected: bool = False
    since_ns: int = 0
    timeout_ns: int = 10 * SECOND_NS
    retry_ns: int = 10 * SECOND_NS
    grace_ns: int = 30 * SECOND_NS
    waits: bool = False
    alone: Scope = Scope.ALL
