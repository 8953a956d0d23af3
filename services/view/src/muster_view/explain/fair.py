"""Explains the order of decayed use: the users of a leaf, the one that comes first at the top, with figures."""

from __future__ import annotations

from math import log

from muster_core.config.properties import duration_text
from muster_core.model.decay import moment, seconds_of
from muster_core.model.decayed_usage import UserUsage
from muster_core.model.queue import Queue
from muster_core.model.resources import saturated
from muster_core.model.text_format import pluralize
from muster_core.partition import Partition
from muster_rest.shapes.explain import FairShareDao

# The limit of users in an answer: the first ones, and the user of the ask.
USERS_MAX = 1_000


def of_queue(partition: Partition, queue: Queue, now_ns: int) -> list[FairShareDao]:
    """The users of a leaf in the order in which their asks of one priority are tried; empty: it has another order."""
    uses = queue.fair_uses
    if uses is None:
        return []
    # (A follower's copy has no horizon of its own; the deciding core has the same at this time.)
    ahead_ns = (now_ns // uses.period_ns + 2) * uses.period_ns
    pending: dict[str, int] = {}
    for app in partition.apps_in(queue):
        pending[app.user] = pending.get(app.user, 0) + sum(ask.pending for ask in app.asks.values())
    shares = [
        _user(
            partition,
            queue,
            uses.users.get(user) or UserUsage(queue, user, uses.half_life_ns),
            pending.get(user, 0),
            now_ns,
            ahead_ns,
        )
        for user in sorted({*uses.users, *pending})
    ]
    shares.sort(key=lambda share: share.share_ahead)
    return shares[:USERS_MAX]


def _user(partition: Partition, leaf: Queue, use: UserUsage, pending: int, now_ns: int, ahead_ns: int) -> FairShareDao:
    names = partition.types.names
    now = moment(now_ns, use.half_life_ns)
    used = {
        names[number]: round(seconds_of(value, now, use.halves, use.half_life_ns))
        for number, value in use.weighted(now).items()
    }
    return FairShareDao(
        user=use.user,
        share=round(_share(partition, leaf, use, now_ns), 9),
        share_ahead=round(_share(partition, leaf, use, ahead_ns), 9),
        used={name: saturated(value) for name, value in used.items() if value},
        held={names[number]: saturated(value) for number, value in use.held.items()},
        pending=pending,
    )


def _share(partition: Partition, leaf: Queue, use: UserUsage, at_ns: int) -> float:
    """The largest part of a type that the user had over the last time, at a moment: 1 is all of it for ever."""
    at = moment(at_ns, use.half_life_ns)
    most = 0.0
    for number, value in use.weighted(at).items():
        total = (leaf.guaranteed or {}).get(number) or _fair_max(partition, leaf, number)
        if total > 0:
            seconds = seconds_of(value, at, use.halves, use.half_life_ns)
            most = max(most, seconds * log(2) / (use.half_life_ns / 1e9) / total)
    return most


def _fair_max(partition: Partition, queue: Queue, number: int) -> int:
    for level in queue.ancestry:
        most = (level.maximum or {}).get(number)
        if most is not None:
            return most
    return partition.capacity[number]


def sentence_of_queue(queue: Queue, shares: list[FairShareDao]) -> str:
    """Which user comes first and which last, with figures."""
    uses, waiting = queue.fair_uses, [share for share in shares if share.pending]
    if uses is None or not shares:
        return ""
    half_life = duration_text(uses.half_life_ns)
    text = f"Its users come in the order of their use, which counts half after {half_life}"
    if not waiting:
        return f"{text}; none has a pending ask."
    first, last = waiting[0], waiting[-1]
    text += f": {_named(first.user)} ({_percent(first.share)} of it lately) comes first"
    if last is not first:
        text += f" and {_named(last.user)} ({_percent(last.share)}) last of {pluralize(len(waiting), 'user')} with asks"
    return f"{text}."


def sentence_of_user(queue: Queue, user: str, shares: list[FairShareDao]) -> str:
    """The place of a user with a pending ask; "": the leaf has another order, or no other user waits."""
    waiting = [share for share in shares if share.pending]
    index = next((number for number, share in enumerate(waiting) if share.user == user), None)
    if queue.fair_uses is None or index is None or len(waiting) < 2:
        return ""
    own = waiting[index]
    text = (
        f"By use (half-life {duration_text(queue.fair_uses.half_life_ns)}), {_named(user)} with {_percent(own.share)} "
        f"of {queue.path} is number {index + 1} of {pluralize(len(waiting), 'user')} with asks there"
    )
    if index:
        ahead = waiting[index - 1]
        text += f", behind {_named(ahead.user)} with {_percent(ahead.share)}"
    return f"{text}."


def _named(user: str) -> str:
    return f"user {user}" if user else "the applications without a user"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
