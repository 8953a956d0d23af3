"""Why is it pending, who must go, where does a queue stand (docs/explain.md).

The answers are read where the scheduler recorded them; nothing is found out anew. What is not recorded because it
concerns one ask alone (its reservation, whether it may preempt at all) is read from the ask and its queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter

from muster_service.go_json import go_json

from muster_scheduler.core.objects import Allocation, Application, Ask, AskGroup
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.past import Past, PastReason
from muster_scheduler.core.past import counts as lasts
from muster_scheduler.core.reasons import PreemptionNo, Reason, ReasonCode
from muster_scheduler.core.resources import saturated
from muster_scheduler.core.states import AppState, QueueState
from muster_scheduler.core.words import amount, count, lasted, listed
from muster_scheduler.follower import PauseKind, RmInfo, RmState
from muster_scheduler.state_codec import REFUSALS_KEPT
from muster_scheduler.view import dao, explain_gang, explain_history, explain_now, explain_preemption
from muster_scheduler.view.explain_dao import (
    ApplicationDao,
    EpisodeDao,
    KeptNodeDao,
    NowDao,
    PendingDao,
    PreemptedDao,
    RefusedNodeDao,
    SummaryDao,
    WaitingDao,
)
from muster_scheduler.view.explain_now import Present
from muster_scheduler.view.explain_preemption import Victims
from muster_scheduler.view.render import Pieces, small

# Nobody records them: they are made when somebody asks.
_HALTS_IN_ORDER = (ReasonCode.RM_STOPPED, ReasonCode.RM_HELD, ReasonCode.RM_ABSENT, ReasonCode.SOURCE_LISTING)
_HALTS = frozenset({*_HALTS_IN_ORDER, ReasonCode.QUEUE_STOPPED, ReasonCode.WAITING_FOR_TURN, ReasonCode.RM_ASKED})
_PAUSES = {
    PauseKind.OPERATOR: ReasonCode.RM_HELD,
    PauseKind.ABSENT: ReasonCode.RM_ABSENT,
    PauseKind.LISTING: ReasonCode.SOURCE_LISTING,
}
_GOES_ON = 1 << 63
# As they came: one that was changed has another place where the view began anew.
_came = attrgetter("demand.submission")


def halt_of(state: RmState) -> Reason | None:
    """Why nothing at all is decided for an RM; None: it is."""
    return next(_halts(state.info), None)


def _halts(info: RmInfo) -> Iterator[Reason]:
    """The same where there is more than one cause; the first one is told."""
    if info.life == "STOPPED":
        yield Reason(ReasonCode.RM_STOPPED, since_ns=info.life_ns)
    if info.held:
        yield Reason(ReasonCode.RM_HELD, said=info.held_reason, since_ns=info.held_ns)
    if info.is_absent:
        yield Reason(ReasonCode.RM_ABSENT, since_ns=info.absent_ns or info.callbacks_since_ns)
    if info.awaited:
        yield Reason(ReasonCode.SOURCE_LISTING, said=info.awaited[0], since_ns=info.awaited_ns)


def halts_of(state: RmState) -> Past:
    """When nothing at all was decided for an RM, as far as it is over: one at a time, the oldest first.

    Of several causes at one time the same is told as while it was so.
    """
    info = state.info
    now = list(_halts(info))
    if not info.pauses and len(now) < 2:
        return ()
    over = [
        (Reason(_PAUSES[kind], said=reason, since_ns=since_ns), until_ns)
        for since_ns, until_ns, reason, kind in info.pauses
    ]
    causes = [*((reason, _GOES_ON) for reason in now), *over]
    causes.sort(key=lambda each: _HALTS_IN_ORDER.index(each[0].code))
    found: list[PastReason] = []
    taken: list[tuple[int, int]] = []
    for reason, until_ns in causes:
        for start_ns, end_ns in explain_history.left(reason.since_ns, until_ns, taken):
            if end_ns != _GOES_ON and lasts(start_ns, end_ns):
                found.append(PastReason(replace(reason, since_ns=start_ns), end_ns))
        taken.append((reason.since_ns, until_ns))
    return tuple(sorted(found, key=lambda each: each.until_ns))


def reason_of(wanted: Ask, *, halt: Reason | None) -> Reason:
    """Why an ask is pending now.

    Where nothing is decided (the RM is stopped or held, or a queue on the way up is stopped) that is the reason,
    whatever was recorded before. Without a recorded one the scheduler has not come to it.
    """
    if halt is not None:
        return replace(halt, since_ns=max(wanted.created_ns, halt.since_ns))
    for queue in wanted.app.queue.ancestry:
        if queue.state is QueueState.STOPPED:
            return Reason(ReasonCode.QUEUE_STOPPED, queue.path, since_ns=wanted.created_ns)
    return wanted.reason or Reason(ReasonCode.WAITING_FOR_TURN, since_ns=wanted.created_ns)


class Explainer:
    """Explains asks, each in O(1): many share one reason, whose sentence is made once.

    :param victims: by the ask that they make room for.
    :param halt: why nothing at all is decided; ``halts``: the same of before.
    """

    def __init__(
        self, partition: Partition, victims: Victims, now_ns: int, *, halt: Reason | None, halts: Past = ()
    ) -> None:
        self._partition, self._victims, self._now_ns, self._halt = partition, victims, now_ns, halt
        self._halts = halts
        self._present = Present(partition)
        self._sentences: dict[tuple[int, str], str] = {}
        self._closed: dict[int, Reason] = {}
        self._holds: dict[int, Reason | None] = {}
        self._kept: dict[int, Reason] = {}  # so that no other reason gets the identity of one that has gone

    def ask(self, wanted: Ask) -> PendingDao:
        """A pending ask: why, what is kept free for it, what preemption does."""
        reason = reason_of(wanted, halt=self._halt)
        made = reason.code in explain_gang.MADE_WHEN_ASKED or reason.code in _HALTS
        now = None if made else self._now(wanted, reason)
        recorded, reason = reason, reason if made else self._as_it_is(reason)
        since_ns = explain_history.since_ns(wanted, recorded, self._halts)
        preemption = explain_preemption.of_ask(self._partition, wanted, reason, self._victims, self._now_ns)
        holds = self._with_figures_of_now(reason, now)
        said = [_wants(wanted) if reason.code is ReasonCode.FREE_RESOURCES_SCATTERED else ""]
        said += [self._sentence(holds or reason, explain_preemption.worth_saying(preemption))]
        said.append(explain_preemption.sentence_of_ask(preemption, self._now_ns))
        if holds is None:
            said.append(explain_now.moved(reason, now, self._now_ns))
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
            as_of=reason.as_of_ns or reason.since_ns,
            now=now,
            waiting_since=wanted.created_ns,
            history=explain_history.of_ask(wanted, recorded, self._halts),
            at=self._now_ns,
            sentence=_one_sentence(wanted, holds or reason, since_ns, self._now_ns),
            message=" ".join(text for text in said if text),
            **{**explain_gang.figures(reason), "since": since_ns},
        )

    def _now(self, wanted: Ask, reason: Reason) -> NowDao | None:
        self._kept[id(reason)] = reason
        return self._present.of(wanted.app, reason)

    def _as_it_is(self, reason: Reason) -> Reason:
        """With the nodes that are closed now: nobody who waits is tried again when one more is."""
        if reason.code not in explain_now.OF_NODES or not (reason.closed or self._present.closed):
            return reason
        if reason.code is ReasonCode.NO_NODES and not self._present.closed:
            return reason  # some came this moment
        key = id(reason)
        if key not in self._closed:
            self._kept[key] = reason
            self._closed[key] = replace(reason, closed=self._present.closed_for(reason))
        return self._closed[key]

    def _with_figures_of_now(self, reason: Reason, now: NowDao | None) -> Reason | None:
        """What a person is told: that a queue uses what it did an hour ago is not true now, though it is full still."""
        if now is None:
            return None
        key = id(reason)
        if key not in self._holds:
            self._kept[key] = reason
            self._holds[key] = explain_now.as_now(reason, now)
        return self._holds[key]

    def _sentence(self, reason: Reason, no: str) -> str:
        if reason.code in explain_gang.MADE_WHEN_ASKED:
            return reason.sentence()
        found = self._sentences.get((id(reason), no))
        if found is None:
            self._kept[id(reason)] = reason
            own = replace(reason, preemption=PreemptionNo(no) if no else None)
            self._sentences[id(reason), no] = found = own.sentence()
        return found


def _wants(wanted: Ask) -> str:
    """Where the reason is about no one type."""
    return f"It asks for {listed([amount(name, value) for name, value in sorted(wanted.shape.quantities.items())])}."


def _one_sentence(wanted: Ask, reason: Reason, since_ns: int, now_ns: int) -> str:
    """Who waits, for how long, and why."""
    who = f"{'Placeholder' if wanted.placeholder else 'Ask'} {wanted.key} of application {wanted.app.app_id}"
    waited = f"has waited for {lasted(now_ns - wanted.created_ns)}"
    if lasts(wanted.created_ns, since_ns):  # else it came, and the first "no" with it
        waited += f", the last {lasted(now_ns - since_ns)} of it" if lasts(since_ns, now_ns) else ", just now"
    return f"{who} {waited} because {reason.clause()}."


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
    return Explainer(partition, victims, now_ns, halt=halt_of(state), halts=halts_of(state))


# ---- one of them -----------------------------------------------------------------------------------------------------


def ask(state: RmState, partition: Partition, wanted: Ask, now_ns: int) -> PendingDao:
    """One pending ask."""
    victims = explain_preemption.victims_of(partition) if wanted.preempts else {}
    return Explainer(partition, victims, now_ns, halt=halt_of(state), halts=halts_of(state)).ask(wanted)


def application(state: RmState, partition: Partition, app: Application, now_ns: int) -> Pieces:
    """An application: why it may not run, what it waits for, which of its allocations must go, how far its gang is.

    ``{ApplicationDao …, "asks": [PendingDao …], "preempted": [PreemptedDao …], "replacements": [ReplacementDao …]}``
    """
    halt = halt_of(state)
    counts = _counts(app, halt)
    gang = explain_gang.of_application(partition, app, partial(reason_of, halt=halt))
    rejected = app.state is AppState.REJECTED
    history = explain_history.of_application(app, partial(reason_of, halt=halt), halts_of(state))
    waits = _as_now(partition, app) if app.reason is not None and app.reason.code.value in counts else None
    head = ApplicationDao(
        partition=partition.name,
        application_id=app.app_id,
        queue=app.requested_queue if rejected else app.queue.path,
        state=app.state.value,
        since=app.story[-1][0] if app.story else app.submitted_ns,
        user=app.user,
        group=app.user_group,
        allocations=len(app.allocations),
        pending=counts.total(),
        counts=dict(counts),
        waiting=_waiting(app.reason) if app.reason is not None else None,
        gang=gang,
        history=history,
        rejected=app.rejected_message,
        at=now_ns,
        sentence=_rejected(app, now_ns) if rejected else _application_one(app, waits, counts, history, now_ns),
        message=_rejected(app, now_ns)
        if rejected
        else _application_sentence(app, waits, counts, gang.message if gang is not None else "", history, now_ns),
    )
    explainer = _explainer(state, partition, now_ns)
    lists: list[tuple[bytes, Pieces]] = [
        (b"asks", small((each for each in sorted(app.asks.values(), key=_came) if not each.gone), explainer.ask)),
        (b"preempted", small(explain_preemption.of_application(app), _storyteller(partition, now_ns))),
        (b"replacements", small(explain_gang.replacements(app), explain_gang.replacement)),
    ]
    yield go_json(head)[:-1]
    for name, pieces in lists:
        yield b',"%b":[' % name
        yield from pieces
        yield b"]"
    yield b"}\n"


def no_ask(app: Application, key: str, now_ns: int) -> str:
    """What there is to say where nothing waits under a key."""
    held = app.held(key)
    if not held:
        return "Ask not found: nothing is allocated under its key either; it was never asked for, or is gone"
    last = held[-1]
    return f"Ask not found: it was allocated {lasted(now_ns - last.allocated_ns)} ago, on node {last.node_id}"


def remembered(partition: Partition, app_id: str) -> Application | None:
    """The last application of the id that ended, or was rejected, as long as it is remembered."""
    known = (partition.apps.get(app_id), partition.rejected.get(app_id))
    return max((app for app in known if app is not None), key=lambda app: app.finished_ns, default=None)


def _as_now(partition: Partition, app: Application) -> Reason | None:
    """Why it waits as a whole, with the figures of now."""
    reason = app.reason
    if reason is None:
        return None
    return explain_now.as_now(reason, Present(partition).of(app, reason)) or reason


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


_ENDS = {
    AppState.REJECTED: "was rejected",
    AppState.COMPLETED: "completed",
    AppState.FAILED: "failed",
    AppState.EXPIRED: "ended",
}


def ended(app: Application, now_ns: int) -> str:
    """How one that has ended did, and when; behind its name."""
    return f"{_ENDS.get(app.state, 'ended')} {lasted(now_ns - app.finished_ns)} ago"


def _rejected(app: Application, now_ns: int) -> str:
    return f"Application {app.app_id} {ended(app, now_ns)}: {app.rejected_message}."


def _has(app: Application) -> str:
    """What it has, and how much of that must go."""
    held = len(app.allocations)
    told = sum(each.told for each in app.allocations.values())
    if not told:
        return f"has {count(held, 'allocation') if held else 'no allocation'}"
    which = f"{told:,} of which" if told < held else "which" if held == 1 else "all of which"
    return f"has {count(held, 'allocation')}, {which} {'was' if told == 1 else 'were'} told to go,"


def _application_one(
    app: Application, waits: Reason | None, counts: Counter[str], history: list[EpisodeDao], now_ns: int
) -> str:
    """What it has, what it wants, and what most of that waits for, and for how long.

    :param waits: why it waits as a whole; None: it does not, or nothing at all is decided.
    """
    if app.state in _ENDS and app.finished_ns:
        return f"Application {app.app_id} {ended(app, now_ns)}."
    pending = counts.total()
    said = f"Application {app.app_id} is {app.state.lower()}, {_has(app)}"
    if not pending:
        return f"{said} and wants no more."
    if waits is not None:
        waited = lasted(now_ns - waits.since_ns)
        return f"{said} and wants {pending:,} more, but has waited for {waited} because {waits.clause()}."
    code, most = min(counts.items(), key=lambda item: (-item[1], item[0]))
    which = "which" if most == pending else f"of which {most:,}"
    behind = f"{'waits' if most == 1 else 'wait'} {explain_history.waits(history, code, most, now_ns)}"
    return f"{said} and wants {pending:,} more, {which} {behind}."


def _application_sentence(
    app: Application, waits: Reason | None, counts: Counter[str], gang: str, history: list[EpisodeDao], now_ns: int
) -> str:
    if app.state in _ENDS and app.finished_ns:
        return " ".join(text for text in (f"It {ended(app, now_ns)}.", gang) if text)
    pending = counts.total()
    said = [f"It is {app.state.lower()}."]
    said.append(f"It {_has(app).removesuffix(',')}, and wants {f'{pending:,} more' if pending else 'no more'}.")
    said.append(gang)
    if waits is not None:
        said.append(waits.sentence())
    elif pending:
        said += explain_history.sentences(history, now_ns)
    return " ".join(text for text in said if text)


# ---- who must go -----------------------------------------------------------------------------------------------------


def preempted(state: RmState, now_ns: int) -> Pieces:
    """Every allocation that was told to go by preemption. ``{"rm": …, "preempted": [PreemptedDao …]}``"""
    yield b'{"rm":%b,"preempted":[' % go_json(state.info.rm_id)
    first = True
    for partition in state.core.partitions.values():
        for piece in small(_still_there(explain_preemption.told_to_go(partition)), _storyteller(partition, now_ns)):
            yield piece if first else b"," + piece.removeprefix(b",")
            first = False
    yield b"]}\n"


def preemption(partition: Partition, held: Allocation, now_ns: int) -> PreemptedDao | None:
    """One allocation's; None: it was not told to go."""
    why = held.preempted
    return explain_preemption.story(partition, held, why, now_ns) if why is not None else None


def preempted_named(partition: Partition, name: str) -> list[Allocation]:
    """The allocations that were told to go and have this key, or this UUID: keys are unique in an application only."""
    return [held for held in _still_there(explain_preemption.told_to_go(partition)) if name in _names(held)]


def _names(held: Allocation) -> tuple[str, ...]:
    return (held.unique_key, held.uuid) if held.uuid else (held.unique_key,)


def _still_there(found: Iterable[Allocation]) -> Iterator[Allocation]:
    for held in found:
        if not held.gone:
            yield held


def _storyteller(partition: Partition, now_ns: int) -> Callable[[Allocation], PreemptedDao]:
    def tell(held: Allocation) -> PreemptedDao:
        assert held.preempted is not None, f"{held} was not told to go"
        return explain_preemption.story(partition, held, held.preempted, now_ns)

    return tell
