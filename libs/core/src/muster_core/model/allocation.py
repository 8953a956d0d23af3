"""The names of an allocation, the placeholder that it replaced, and the reason of its preemption."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplacedPlaceholder:
    """The placeholder that a real allocation replaced."""

    key: str
    created_ns: int


@dataclass(frozen=True, slots=True)
class PreemptionRecord:
    """Why the scheduler preempted an allocation, and for which ask.

    Shares are fair shares of a queue (used of guaranteed, else of its fair max), before and after the preemption.

    :param rule: the name of a rule in ``preemption/registry.py``.
    :param app_id: the application of the ask for which room is made; ``key`` and ``queue``: the ask's key and leaf. For
        QUOTA: "", "" and the queue above its max. For REVOKED: "", the source and its offer (``mesos/o-17``), "".
    """

    rule: str
    app_id: str
    key: str
    queue: str
    since_ns: int
    victim_share_before: float = 0.0
    victim_share_after: float = 0.0
    asker_share_before: float = 0.0
    asker_share_after: float = 0.0


@dataclass(frozen=True, slots=True)
class BackfillRecord:
    """The reservation on whose node an allocation was backfilled: the application and the key of its ask.

    :param due_ns: when the reservation was due then, by declared ends.
    :param end_ns: when the allocation ends at the latest: it was let in for that, so it never becomes later. After
        ``due_ns``: the ask fits beside it.
    """

    app_id: str
    key: str
    due_ns: int
    end_ns: int


def unique_key(key: str, ordinal: int) -> str:
    """Unique within an application: the key, with '#n' from the ask's second allocation on.

    A '#' in the key itself is doubled, so that the ask "k#1" and the second allocation of the ask "k" differ.
    """
    if "#" in key:
        key = key.replace("#", "##")
    return f"{key}#{ordinal}" if ordinal else key


def foreign_id(key: str, source: str) -> str:
    """See :attr:`Allocation.foreign_id`. (No name that the RM or a source sends contains this character.)"""
    return f"{key}\0{source}" if source else key


def made_uuid(submission: int, ordinal: int, now_ns: int) -> str:
    """Makes an allocation's UUID if the RM gave none (previous generation): unique, even after the log was lost.

    (Then submission numbers start anew, but time does not, and the RM reports the UUIDs that it got before.)
    """
    return f"{submission:x}-{ordinal}-{now_ns:x}"
