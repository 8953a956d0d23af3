"""Why is it pending, who must go, where does a queue stand (docs/explain.md).

The answers are read where the scheduler recorded them; nothing is found out anew. What is not recorded because it
concerns one ask alone (its reservation, whether it may preempt at all) is read from the ask and its queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from muster_service.go_json import go_json

from muster_scheduler.core.external import SourceState
from muster_scheduler.core.objects import Allocation, Application, Ask, AskGroup
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.reasons import PreemptionNo, Reason, ReasonCode
from muster_scheduler.core.resources import saturated
from muster_scheduler.core.states import QueueState
from muster_scheduler.follower import RmState
from muster_scheduler.state_codec import REFUSALS_KEPT
from muster_scheduler.view import dao, explain_gang, explain_preemption
from muster_scheduler.view.explain_dao import (
    ApplicationDao,
    KeptNodeDao,
    PendingDao,
    PreemptedDao,
    RefusedNodeDao,
    SummaryDao,
    WaitingDao,
)
from muster_scheduler.view.explain_preemption import Victims
from muster_scheduler.view.render import Pieces, small


def halt_of(state: RmState) -> Reason | None:
    """Why nothing at all is decided for an RM; None: it is."""
    info = state.info
    if info.life == "STOPPED":
        return Reason(ReasonCode.RM_STOPPED)
    if info.held:
        return Reason(ReasonCode.RM_HELD, said=info.held_reason)
    if info.is_absent:
        return Reason(ReasonCode.RM_ABSENT)
    for source in state.core.external.all_sources():
        if source.state is SourceState.LISTING:  # (an informer lists once in its life: at the start)
            return Reason(ReasonCode.SOURCE_LISTING, said=source.source)
    return None


def reason_of(wanted: Ask, *, halt: Reason | None) -> Reason:
    """Why an ask is pending now.

    Where nothing is decided (the RM is stopped or held, or a queue on the way up is stopped) that is the reason,
    whatever was recorded before. Without a recorded one the scheduler has not come to it.
    """
    if halt is not None:
        return replace(halt, since_ns=wanted.created_ns)
    for queue in wanted.app.queue.ancestry:
        if queue.state is QueueState.STOPPED:
            return Reason(ReasonCode.QUEUE_STOPPED, queue.path, since_ns=wanted.created_ns)
    return wanted.reason or Reason(ReasonCode.WAITING_FOR_TURN, since_ns=wanted.created_ns)


class Explainer:
    """Explains asks, each in O(1): many share one reason, whose sentence is made once.

    :param victims: by the ask that they make room for.
    """

    def __init__(self, partition: Partition, victims: Victims, now_ns: int, *, halt: Reason | None) -> None:
        self._partition, self._victims, self._now_ns, self._halt = partition, victims, now_ns, halt
        self._sentences: dict[tuple[int, str], str] = {}
        self._kept: list[Reason] = []  # so that no other reason gets the identity of one that has gone

    def ask(self, wanted: Ask) -> PendingDao:
        """A pending ask: why, what is kept free for it, what preemption does."""
        reason = reason_of(wanted, halt=self._halt)
        preemption = explain_preemption.of_ask(self._partition, wanted, reason, self._victims, self._now_ns)
        said = [self._sentence(reason, explain_preemption.worth_saying(preemption))]
        said.append(explain_preemption.sentence_of_ask(preemption))
        kept = wanted.reserved
        if kept is not None:
            said.append(f"Node {kept.node_id} is kept free for it.")
        return PendingDao(
            partition=self._partition.name,
            application_id=wanted.app.app_id,
            allocation_key=wanted.key,
            queue=wanted.app.queue.path,
            count=wanted.pending,
            priority=wanted.priority,
            resource=wanted.shape.quantities,
            placeholder=wanted.placeholder,
            task_group=wanted.task_group,
            gang=explain_gang.awaited(reason),
            reservation=KeptNodeDao(node=kept.node_id, since=wanted.reserved_ns) if kept is not None else None,
            preemption=preemption,
            refusals=_refusals(wanted),
            refused_until=wanted.refusals.until_ns if wanted.refusals is not None else 0,
            scaled_up=wanted.scaled_up,
            message=" ".join(text for text in said if text),
            **explain_gang.figures(reason),
        )

    def _sentence(self, reason: Reason, no: str) -> str:
        if reason.code in explain_gang.MADE_WHEN_ASKED:
            return reason.sentence()
        found = self._sentences.get((id(reason), no))
        if found is None:
            self._kept.append(reason)
            own = replace(reason, preemption=PreemptionNo(no) if no else None)
            self._sentences[id(reason), no] = found = own.sentence()
        return found


def _refusals(wanted: Ask) -> list[RefusedNodeDao]:
    refused = list(wanted.refusals.nodes.values())[-REFUSALS_KEPT:] if wanted.refusals is not None else []
    return [
        RefusedNodeDao(node=each.node_id, reason=each.reason, since=each.refused_ns, unanswered=each.unanswered)
        for each in refused
    ]


# ---- everything that waits -------------------------------------------------------------------------------------------


def pending(state: RmState, now_ns: int) -> Pieces:
    """Every pending ask with its reason, and how often each reason is given.

    ``{"rm": …, "pending": [PendingDao …], "counts": {code: pending allocations}}``
    """
    counts: Counter[str] = Counter()
    asks: list[tuple[Explainer, Ask]] = []
    for partition in state.core.partitions.values():
        explainer = _explainer(state, partition, now_ns)
        asks += [(explainer, wanted) for wanted in _asks(partition)]

    def shown(of: tuple[Explainer, Ask]) -> PendingDao:
        explainer, wanted = of
        found = explainer.ask(wanted)
        counts[found.reason] += wanted.pending
        return found

    yield b'{"rm":%b,"pending":[' % go_json(state.info.rm_id)
    yield from small((of for of in asks if not of[1].gone), shown)
    yield b'],"counts":%b}\n' % go_json(dict(counts))


def summary(state: RmState) -> SummaryDao:
    """How many are allocated, and how many wait for what: O(pending asks), made for polling."""
    halt = halt_of(state)
    counts: Counter[str] = Counter()
    for partition in state.core.partitions.values():
        for app in partition.apps.values():
            if app.asks:
                counts += _counts(app, halt)
    return SummaryDao(
        rm=state.info.rm_id,
        life=state.info.life,
        allocated=dao.total_containers(state.core.partitions.values()),
        pending=counts.total(),
        counts=dict(counts),
    )


def _counts(app: Application, halt: Reason | None) -> Counter[str]:
    """How many allocations the application wants, by why they are not there. Asks of one group share one reason."""
    counts: Counter[str] = Counter()
    codes: dict[AskGroup, str] = {}
    for wanted in app.asks.values():
        group = wanted.group
        code = codes.get(group) if group is not None else None
        if code is None:
            code = reason_of(wanted, halt=halt).code.value
            if group is not None:
                codes[group] = code
        counts[code] += wanted.pending
    return counts


def _asks(partition: Partition) -> Iterator[Ask]:
    for app in partition.apps.values():
        if app.asks:
            yield from app.asks.values()


def _explainer(state: RmState, partition: Partition, now_ns: int) -> Explainer:
    victims = explain_preemption.victims_of(partition)
    return Explainer(partition, victims, now_ns, halt=halt_of(state))


# ---- one of them -----------------------------------------------------------------------------------------------------


def ask(state: RmState, partition: Partition, wanted: Ask, now_ns: int) -> PendingDao:
    """One pending ask."""
    victims = explain_preemption.victims_of(partition) if wanted.preempts else {}
    return Explainer(partition, victims, now_ns, halt=halt_of(state)).ask(wanted)


def application(state: RmState, partition: Partition, app: Application, now_ns: int) -> Pieces:
    """An application: why it may not run, what it waits for, which of its allocations must go, how far its gang is.

    ``{ApplicationDao …, "asks": [PendingDao …], "preempted": [PreemptedDao …], "replacements": [ReplacementDao …]}``
    """
    halt = halt_of(state)
    counts = _counts(app, halt)
    gang = explain_gang.of_application(partition, app, partial(reason_of, halt=halt))
    head = ApplicationDao(
        partition=partition.name,
        application_id=app.app_id,
        queue=app.queue.path,
        state=app.state.value,
        since=app.story[-1][0] if app.story else app.submitted_ns,
        user=app.user,
        group=app.user_group,
        allocations=len(app.allocations),
        pending=counts.total(),
        counts=dict(counts),
        waiting=_waiting(app.reason) if app.reason is not None else None,
        gang=gang,
        message=_application_sentence(app, counts.total(), gang.message if gang is not None else ""),
    )
    explainer = _explainer(state, partition, now_ns)
    lists: list[tuple[bytes, Pieces]] = [
        (b"asks", small((each for each in list(app.asks.values()) if not each.gone), explainer.ask)),
        (b"preempted", small(explain_preemption.of_application(app), _storyteller(partition))),
        (b"replacements", small(explain_gang.replacements(app), explain_gang.replacement)),
    ]
    yield go_json(head)[:-1]
    for name, pieces in lists:
        yield b',"%b":[' % name
        yield from pieces
        yield b"]"
    yield b"}\n"


def _waiting(reason: Reason) -> WaitingDao:
    return WaitingDao(
        reason=reason.code.value,
        queue=reason.queue,
        who=reason.who,
        resource_type=reason.resource_type,
        asked=saturated(reason.asked),
        used=saturated(reason.used),
        limit=saturated(reason.limit),
        promised=saturated(reason.promised),
        since=reason.since_ns,
    )


def _application_sentence(app: Application, pending: int, gang: str) -> str:
    said = [f"It is {app.state.lower()}."]
    has = f"It has {len(app.allocations)} allocation{'s' * (len(app.allocations) != 1)}"
    said.append(f"{has}, and wants {f'{pending} more' if pending else 'no more'}.")
    said.append(gang)
    if pending and app.reason is not None:
        said.append(app.reason.sentence())
    return " ".join(text for text in said if text)


# ---- who must go -----------------------------------------------------------------------------------------------------


def preempted(state: RmState) -> Pieces:
    """Every allocation that was told to go by preemption. ``{"rm": …, "preempted": [PreemptedDao …]}``"""
    yield b'{"rm":%b,"preempted":[' % go_json(state.info.rm_id)
    first = True
    for partition in state.core.partitions.values():
        for piece in small(_still_there(explain_preemption.told_to_go(partition)), _storyteller(partition)):
            yield piece if first else b"," + piece.removeprefix(b",")
            first = False
    yield b"]}\n"


def preemption(partition: Partition, held: Allocation) -> PreemptedDao | None:
    """One allocation's; None: it was not told to go."""
    return explain_preemption.story(partition, held, held.preempted) if held.preempted is not None else None


def _still_there(found: Iterable[Allocation]) -> Iterator[Allocation]:
    for held in found:
        if not held.gone:
            yield held


def _storyteller(partition: Partition) -> Callable[[Allocation], PreemptedDao]:
    def tell(held: Allocation) -> PreemptedDao:
        assert held.preempted is not None, f"{held} was not told to go"
        return explain_preemption.story(partition, held, held.preempted)

    return tell
