"""Earlier reasons of asks, applications and queues, from the records of waitlists and applications.

(``model/reason_history.py`` defines what is kept, and where. A reason without any waiting ask is dropped.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from muster_core.model.application import Application, Ask, AskGroup
from muster_core.model.queue import Queue
from muster_core.model.reason_history import PAST_KEPT, Past, PastReason, is_significant
from muster_core.model.reasons import Reason, ReasonCode, capital
from muster_core.model.resources import saturated
from muster_core.model.text_format import SECOND_NS, format_duration, pluralize
from muster_core.partition import Partition
from muster_rest.shapes.explain import EpisodeDao, PastDao

from muster_view.explain import gang
from muster_view.explain.reason_phrases import WAITS, waits_for

# Limit for a queue or an application: their asks may have had many reasons.
EPISODES_MAX = 20
SENTENCES_MAX = 5


# ---- of an ask -------------------------------------------------------------------------------------------------------


def since_ns(ask: Ask, reason: Reason, pauses: Past) -> int:
    """The start of the reason for this ask. Other asks may have the reason for longer, and a pause may have hidden it
    before.
    """
    return max(reason.since_ns, ask.created_ns, *(pause.until_ns for pause in pauses))


def of_ask(ask: Ask, reason: Reason, pauses: Past = ()) -> list[PastDao]:
    """The ask's earlier reasons before ``reason``, oldest first.

    A time without decisions (``pauses``) hides all other reasons. A reason of the whole application hides those of the
    waitlist at the same time. The reasons that the application kept of a deleted waitlist come last.
    """
    began_ns = since_ns(ask, reason, pauses)
    app, group = ask.app, ask.group
    own = app.past if app.reason is None or app.reason is reason else (*app.past, _open(app.reason, reason))
    pauses = tuple(past_reason for past_reason in pauses if past_reason.until_ns > ask.created_ns)
    waitlist = app.queue.waitlists.get(group.wait_key) if group is not None else None
    listed: Past = waitlist.past if waitlist is not None else ()
    if waitlist is not None and waitlist.reason is not None and waitlist.reason is not reason:
        listed = (*listed, _open(waitlist.reason, reason))
    if pauses:  # it continued after them
        listed = (*listed, PastReason(reason, began_ns))
    if not own and not listed:
        return []
    sources = (
        pauses,
        [past_reason for past_reason in own if past_reason.shape is None],
        listed,
        [past_reason for past_reason in own if past_reason.shape == ask.shape],
    )
    history: list[PastDao] = []
    taken: list[tuple[int, int]] = []
    for past in sources:
        for past_reason in past:
            from_ns, until_ns = max(past_reason.reason.since_ns, ask.created_ns), min(past_reason.until_ns, began_ns)
            for start_ns, end_ns in uncovered_spans(from_ns, until_ns, taken):
                if is_significant(start_ns, end_ns):
                    history.append(_past(past_reason.reason, start_ns, end_ns))
        taken = [(past_reason.since, past_reason.until) for past_reason in history]
    history.sort(key=lambda past_reason: past_reason.since)
    return history[-PAST_KEPT:]


def _open(recorded: Reason, reason: Reason) -> PastReason:
    """The recorded reason, if another one hides it now (an operator's pause)."""
    return PastReason(recorded, reason.since_ns)


def uncovered_spans(since_ns: int, until_ns: int, taken: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of a time that are not taken."""
    for start_ns, end_ns in sorted(taken):
        if since_ns < start_ns:
            yield since_ns, min(until_ns, start_ns)
        since_ns = max(since_ns, end_ns)
    if since_ns < until_ns:
        yield since_ns, until_ns


def _past(reason: Reason, since_ns: int, until_ns: int) -> PastDao:
    newer = reason.as_of_ns > until_ns  # it continued after a pause, with the figures from then
    if newer:
        reason = Reason(reason.code, reason.queue, reason.resource_type, who=reason.who, node=reason.node)
    return PastDao(
        reason=reason.code.value,
        resource_type=reason.resource_type,
        asked=saturated(reason.asked),
        used=saturated(reason.used),
        limit=saturated(reason.limit),
        free=saturated(reason.free),
        promised=saturated(reason.promised),
        limit_queue=reason.queue,
        who=reason.who,
        node=reason.node,
        nodes=reason.nodes,
        reserved_nodes=reason.reserved,
        closed=gang.closed(reason),
        since=since_ns,
        until=until_ns,
        message=f"It waited {WAITS[reason.code]}." if newer else capital(f"{_was(reason)}."),
    )


def _was(reason: Reason) -> str:
    match reason.code:
        case ReasonCode.RM_HELD:
            detail = f" ({reason.said})" if reason.said else ""
            return f"an operator had paused the resource manager{detail}; nothing was scheduled until it was resumed"
        case ReasonCode.RM_ABSENT:
            return "the resource manager wants predicate calls before placements, but its callback stream was closed"
        case ReasonCode.SOURCE_LISTING:
            return f"nothing was scheduled until source {reason.said} had listed all its objects"
        case _:
            return reason.clause()  # the sentence as it was then


# ---- of an application, of a queue -----------------------------------------------------------------------------------


class _ReasonKey(NamedTuple):
    """The part of a reason that all its asks share."""

    code: str
    queue: str
    who: str
    resource_type: str


class _ReasonTimes:
    """The times in which some ask had a reason; overlapping times become one."""

    def __init__(self, pauses: Past) -> None:
        self._pauses = [(pause.reason.since_ns, pause.until_ns) for pause in pauses]
        self._pieces: dict[_ReasonKey, list[tuple[int, int]]] = {}
        self._asks: dict[_ReasonKey, int] = {}

    def add_pauses(self, pauses: Past, since_ns: int) -> None:
        """The times without decisions since the arrival of an ask."""
        for pause in pauses:
            self._add(_about(pause.reason), max(pause.reason.since_ns, since_ns), pause.until_ns)

    def past(self, past: Past, since_ns: int) -> None:
        """The ended reasons since the arrival of an ask."""
        for past_reason in past:
            for start_ns, end_ns in uncovered_spans(
                max(past_reason.reason.since_ns, since_ns), past_reason.until_ns, self._pauses
            ):
                self._add(_about(past_reason.reason), start_ns, end_ns)

    def now(self, reason: Reason, asks: int, since_ns: int) -> None:
        """The current reason of some asks."""
        about = _about(reason)
        began_ns = max((reason.since_ns, since_ns, *(until_ns for _, until_ns in self._pauses)))
        self.past((PastReason(reason, began_ns),), since_ns)
        self._pieces.setdefault(about, []).append((began_ns, 0))
        self._asks[about] = self._asks.get(about, 0) + asks

    def _add(self, about: _ReasonKey, start_ns: int, end_ns: int) -> None:
        if is_significant(start_ns, end_ns):
            self._pieces.setdefault(about, []).append((start_ns, end_ns))

    def told(self) -> list[EpisodeDao]:
        """The last episodes, in the order of their start."""
        episodes = []
        for about, pieces in self._pieces.items():
            asks = self._asks.get(about, 0)
            for since_ns, until_ns in _joined(pieces):
                episodes.append(
                    EpisodeDao(
                        reason=about.code,
                        resource_type=about.resource_type,
                        limit_queue=about.queue,
                        who=about.who,
                        since=since_ns,
                        until=until_ns,
                        asks=0 if until_ns else asks,
                    )
                )
        # Current reasons come before any number of past ones.
        episodes.sort(key=lambda episode: (not episode.until, episode.until, *_order(episode)))
        return sorted(episodes[-EPISODES_MAX:], key=_order)


def _order(episode: EpisodeDao) -> tuple[int, int, str, str, str, str]:
    return episode.since, episode.until, episode.reason, episode.limit_queue, episode.who, episode.resource_type


def _about(reason: Reason) -> _ReasonKey:
    return _ReasonKey(reason.code.value, reason.queue, reason.who, reason.resource_type)


def _joined(pieces: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merges times. An end of 0: it continues. Gaps of a moment are ignored."""
    ordered = sorted(pieces)
    since_ns, until_ns = ordered[0]
    for start_ns, end_ns in ordered[1:]:
        if until_ns and is_significant(until_ns, start_ns):
            yield since_ns, until_ns
            since_ns, until_ns = start_ns, end_ns
        elif until_ns:
            until_ns = max(until_ns, end_ns) if end_ns else 0
    yield since_ns, until_ns


def sentences(history: Iterable[EpisodeDao], now_ns: int) -> list[str]:
    """One sentence for each current reason: the first few."""
    now = [episode for episode in history if not episode.until and episode.asks]
    sentences = [
        f"{pluralize(episode.asks, 'ask waits', 'asks wait')} {_for(episode)}, "
        f"{wait_duration_text(episode.asks, now_ns - episode.since)}."
        for episode in now[:SENTENCES_MAX]
    ]
    if others := sum(episode.asks for episode in now[SENTENCES_MAX:]):
        sentences.append(f"{pluralize(others, 'ask more waits', 'asks more wait')} for other things.")
    return sentences


def wait_clause(history: Iterable[EpisodeDao], code: str, asks: int, now_ns: int) -> str:
    """The words after "wait" for asks with a reason: for what, and for how long."""
    alike = [episode for episode in history if episode.reason == code and not episode.until and episode.asks]
    phrase = _for(alike[0]) if len(alike) == 1 else WAITS[code]
    return f"{phrase}, {wait_duration_text(asks, now_ns - min((episode.since for episode in alike), default=now_ns))}"


def wait_duration_text(asks: int, longest_ns: int) -> str:
    """The waiting time of several asks, given the longest one."""
    return f"{'the longest ' if asks > 1 and longest_ns >= SECOND_NS else ''}for {format_duration(longest_ns)}"


def _for(episode: EpisodeDao) -> str:
    return waits_for(episode.reason, queue=episode.limit_queue, who=episode.who, kind=episode.resource_type)


def of_application(app: Application, reason_of: Callable[[Ask], Reason], pauses: Past = ()) -> list[EpisodeDao]:
    """Current and earlier reasons of the application and its asks: O(its groups of asks)."""
    times = _ReasonTimes(pauses)
    _add(app, times, reason_of, pauses)
    return times.told()


def of_queue(
    partition: Partition, queue: Queue, reason_of: Callable[[Ask], Reason], pauses: Past = ()
) -> list[EpisodeDao]:
    """Current and earlier reasons of the pending asks in the queue and its descendants: O(groups of asks)."""
    times = _ReasonTimes(pauses)
    for app in partition.apps_below(queue):
        _add(app, times, reason_of, pauses)
    return times.told()


def _add(app: Application, times: _ReasonTimes, reason_of: Callable[[Ask], Reason], pauses: Past) -> None:
    times.past(app.past, app.submitted_ns)
    first_ns = 0
    for group in app.groups.values():
        head = group.head()
        if head is not None:  # asks of a group share one reason
            reason = reason_of(head)
            times.now(reason, group.asks, head.created_ns)
            first_ns = min(first_ns or head.created_ns, head.created_ns)
            _add_list(group, reason, head.created_ns, times)
    for ask in gang.waiting_for_placeholders(app):
        times.now(reason_of(ask), 1, ask.created_ns)
        first_ns = min(first_ns or ask.created_ns, ask.created_ns)
    if pauses and first_ns:
        times.add_pauses(pauses, first_ns)


def _add_list(group: AskGroup, reason: Reason, created_ns: int, times: _ReasonTimes) -> None:
    waitlist = group.app.queue.waitlists.get(group.wait_key)
    if waitlist is None:
        return
    times.past(waitlist.past, created_ns)
    if waitlist.reason is not None and waitlist.reason is not reason:
        times.past((_open(waitlist.reason, reason),), created_ns)
