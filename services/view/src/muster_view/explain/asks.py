"""Explains pending asks, applications and preempted allocations (docs/explain.md).

The view reads the reasons that the scheduler recorded and decides nothing again. Facts about a single ask (its
reservation, its right to preempt) are not in the reason; the view reads them from the ask and its queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from muster_core.allocation.backfill import due_of, is_reported
from muster_core.config.queue_config import BACKFILL_OFF
from muster_core.gangs.messages import TIMEOUT_MESSAGE
from muster_core.model.application import Allocation, Application, Ask, AskGroup
from muster_core.model.pending_reason import ask_reason
from muster_core.model.queue import Queue
from muster_core.model.reason_history import Past, PastReason
from muster_core.model.reason_history import is_significant as lasts
from muster_core.model.reasons import NoPreemptionReason, Reason, ReasonCode
from muster_core.model.resources import saturated
from muster_core.model.states import AppState, QueueState
from muster_core.model.text_format import format_amount, format_duration, join_words, pluralize
from muster_core.partition import Partition
from muster_rest.shapes.explain import (
    ApplicationHeadDao,
    EpisodeDao,
    FairShareDao,
    KeptNodeDao,
    NowDao,
    PendingDao,
    PreemptedDao,
    RefusedNodeDao,
    SummaryDao,
    WaitingDao,
)
from muster_runtime.go_json import go_json
from muster_state.encoding import REFUSALS_KEPT
from muster_state.state_folder import PauseKind, RmEntry, RmInfo

from muster_view.explain import current_state, fair, wait_history
from muster_view.explain import gang as explain_gang
from muster_view.explain import preemption as explain_preemption
from muster_view.explain.current_state import CurrentState
from muster_view.explain.preemption import Victims
from muster_view.rest import dao
from muster_view.rest.json_render import Pieces, small

# Not recorded: the view derives these reasons for each answer.
_RM_PAUSES = (ReasonCode.RM_STOPPED, ReasonCode.RM_HELD, ReasonCode.RM_ABSENT, ReasonCode.SOURCE_LISTING)
_NOT_RECORDED = frozenset({*_RM_PAUSES, ReasonCode.QUEUE_STOPPED, ReasonCode.WAITING_FOR_TURN, ReasonCode.RM_ASKED})
_PAUSE_CODES = {
    PauseKind.OPERATOR: ReasonCode.RM_HELD,
    PauseKind.ABSENT: ReasonCode.RM_ABSENT,
    PauseKind.LISTING: ReasonCode.SOURCE_LISTING,
}
_GOES_ON = 1 << 63
# So many allocations that were reported on a reserved node are named.
_REPORTED_MAX = 3
# Sorts by arrival: after a restart of the view, a changed ask has another place in its dictionary.
_came = attrgetter("demand.submission")


def pause_of(state: RmEntry) -> Reason | None:
    """Why the scheduler makes no decisions for an RM; None: it does."""
    return next(_pauses(state.info), None)


def _pauses(info: RmInfo) -> Iterator[Reason]:
    """Yields all present causes of a pause; people see the first one."""
    if info.life == "STOPPED":
        yield Reason(ReasonCode.RM_STOPPED, since_ns=info.life_ns)
    if info.paused:
        yield Reason(ReasonCode.RM_HELD, said=info.paused_reason, since_ns=info.paused_ns)
    if info.is_absent:
        yield Reason(ReasonCode.RM_ABSENT, since_ns=info.absent_ns or info.callbacks_since_ns)
    if info.awaited:
        yield Reason(ReasonCode.SOURCE_LISTING, said=info.awaited[0], since_ns=info.awaited_ns)


def past_pauses(state: RmEntry) -> Past:
    """The past times without decisions for an RM, without overlaps, oldest first.

    If several causes overlap, the cause counts that people saw at the time.
    """
    info = state.info
    now = list(_pauses(info))
    if not info.pauses and len(now) < 2:
        return ()
    over = [
        (Reason(_PAUSE_CODES[kind], said=reason, since_ns=since_ns), until_ns)
        for since_ns, until_ns, reason, kind in info.pauses
    ]
    causes = [*((reason, _GOES_ON) for reason in now), *over]
    causes.sort(key=lambda cause: _RM_PAUSES.index(cause[0].code))
    pauses: list[PastReason] = []
    taken: list[tuple[int, int]] = []
    for reason, until_ns in causes:
        for start_ns, end_ns in wait_history.uncovered_spans(reason.since_ns, until_ns, taken):
            if end_ns != _GOES_ON and lasts(start_ns, end_ns):
                pauses.append(PastReason(replace(reason, since_ns=start_ns), end_ns))
        taken.append((reason.since_ns, until_ns))
    return tuple(sorted(pauses, key=lambda pause: pause.until_ns))


class ScopeWaits:
    """Asks that wait because the RM answers another proposal first. Made for one answer: it searches each application
    for its proposal once.

    :param somewhere: the RM wants one proposal at a time in some scope; otherwise only asks that want it wait.
    """

    def __init__(self, *, somewhere: bool = False) -> None:
        self._somewhere = somewhere
        self._proposed: dict[Application, Ask | None] = {}

    def reason(self, ask: Ask) -> Reason | None:
        """Why an ask without a recorded reason waits for its turn; None: it does not wait for a turn."""
        if not self._somewhere and not ask.demand.alone:
            return None
        # (A proposal is recorded only if its answer takes long.)
        app = ask.app
        if app not in self._proposed:
            self._proposed[app] = next(
                (candidate for candidate in app.asks.values() if candidate.asked is not None), None
            )
        proposed = self._proposed[app]
        if proposed is None or proposed.asked is None:
            return Reason(ReasonCode.RM_TURN, since_ns=ask.created_ns)
        return Reason(
            ReasonCode.RM_TURN, node=proposed.asked.node_id, placeholder=proposed.key, since_ns=proposed.asked.since_ns
        )


def turns_of(state: RmEntry) -> ScopeWaits:
    """The turns for one answer about an RM."""
    stream = state.info.callbacks
    return ScopeWaits(somewhere=bool(stream.predicates and stream.open_proposals))


def reason_of(ask: Ask, *, pause: Reason | None, turns: ScopeWaits | None = None) -> Reason:
    """Why an ask is pending now.

    If the scheduler makes no decisions (the RM is stopped or paused, or a queue of the path is stopped), that is the
    reason, and a recorded one does not count. Without a recorded reason the scheduler has not tried the ask yet.
    """
    if pause is not None:
        return replace(pause, since_ns=max(ask.created_ns, pause.since_ns))
    for queue in ask.app.queue.ancestry:
        if queue.state is QueueState.STOPPED:
            return Reason(ReasonCode.QUEUE_STOPPED, queue.path, since_ns=ask.created_ns)
    reason = ask_reason(ask)
    if reason is not None:
        return reason
    turn = (turns or ScopeWaits()).reason(ask)
    return turn or Reason(ReasonCode.WAITING_FOR_TURN, since_ns=ask.created_ns)


class Explainer:
    """Explains asks, each in O(1): many share one reason, and its sentence is made once.

    :param victims: by the ask that needs their room.
    :param pause: why the scheduler makes no decisions; ``pauses``: the past ones.
    :param turns: which asks wait for the answer to another proposal.
    """

    def __init__(
        self,
        partition: Partition,
        victims: Victims,
        now_ns: int,
        *,
        pause: Reason | None,
        pauses: Past = (),
        turns: ScopeWaits | None = None,
    ) -> None:
        self._turns = turns or ScopeWaits()
        self._partition, self._victims, self._now_ns, self._pause = partition, victims, now_ns, pause
        self._pauses = pauses
        self._present = CurrentState(partition)
        self._sentences: dict[tuple[int, str], str] = {}
        self._closed: dict[int, Reason] = {}
        self._shares: dict[Queue, list[FairShareDao]] = {}
        self._holds: dict[int, Reason | None] = {}
        self._kept: dict[int, Reason] = {}  # so that no later reason gets the id() of a deleted one

    def ask(self, ask: Ask) -> PendingDao:
        """A pending ask: its reason, its reservation, its preemption."""
        reason = reason_of(ask, pause=self._pause, turns=self._turns)
        is_derived = reason.code in explain_gang.MADE_WHEN_ASKED or reason.code in _NOT_RECORDED
        now = None if is_derived else self._now(ask, reason)
        recorded, reason = reason, reason if is_derived else self._as_it_is(reason)
        since_ns = wait_history.since_ns(ask, recorded, self._pauses)
        preemption = explain_preemption.of_ask(self._partition, ask, reason, self._victims, self._now_ns)
        holds = self._with_figures_of_now(reason, now)
        sentences = [_wants(ask) if reason.code is ReasonCode.FREE_RESOURCES_SCATTERED else ""]
        sentences += [self._sentence(holds or reason, explain_preemption.display_code(preemption))]
        sentences.append(explain_preemption.sentence_of_ask(preemption, self._now_ns))
        if holds is None:
            sentences.append(current_state.changed_text(reason, now, self._now_ns))
        kept = None
        if ask.reserved_node:
            kept = KeptNodeDao(node=ask.reserved_node, since=ask.reserved_ns)
            sentences.append(f"Node {ask.reserved_node} is reserved for it.")
            sentences += self._reserved(ask)
        if ask.app.queue.fair_uses is not None:
            sentences.append(self._place_of(ask))
        return PendingDao(
            partition=self._partition.name,
            application_id=ask.app.app_id,
            allocation_key=ask.key,
            queue=ask.app.queue.path,
            count=ask.pending,
            priority=ask.priority,
            resource=ask.shape.quantities,
            placeholder=ask.placeholder,
            task_group=ask.task_group,
            gang=explain_gang.missing_item(reason),
            reservation=kept,
            preemption=preemption,
            refusals=_refusals(ask),
            refused_until=ask.refusals.until_ns if ask.refusals is not None else 0,
            scaled_up=ask.scaled_up,
            as_of=reason.as_of_ns or reason.since_ns,
            now=now,
            waiting_since=ask.created_ns,
            history=wait_history.of_ask(ask, recorded, self._pauses),
            at=self._now_ns,
            sentence=_one_sentence(ask, holds or reason, since_ns, self._now_ns),
            message=" ".join(text for text in sentences if text),
            **{**explain_gang.figures(reason), "since": since_ns},
        )

    def _place_of(self, ask: Ask) -> str:
        """The place of the ask's user in an order by use."""
        queue = ask.app.queue
        if queue not in self._shares:
            self._shares[queue] = fair.of_queue(self._partition, queue, self._now_ns)
        return fair.sentence_of_user(queue, ask.app.user, self._shares[queue])

    def _reserved(self, ask: Ask) -> Iterator[str]:
        """When the ask's node is due, where others may use it until then; and what was reported there meanwhile, which
        may be why it is due later than before.
        """
        node = self._partition.nodes.get(ask.reserved_node)
        if node is None or self._partition.config.backfill == BACKFILL_OFF:
            return
        due = due_of(node, ask, self._now_ns)
        if due is not None:
            yield f"By declared ends it is due in {format_duration(due[0] - self._now_ns)}."
        reported = [allocation for allocation in node.allocations.values() if is_reported(allocation, ask.reserved_ns)]
        if reported:
            names = [_reported(allocation) for allocation in reported[:_REPORTED_MAX]]
            remaining = len(reported) - len(names)
            yield f"Reported there since then: {join_words([*names, f'{remaining} more'] if remaining else names)}."

    def _now(self, ask: Ask, reason: Reason) -> NowDao | None:
        self._kept[id(reason)] = reason
        return self._present.of(ask.app, reason)

    def _as_it_is(self, reason: Reason) -> Reason:
        """The reason with the nodes that are closed now: the scheduler tries no ask again when a node closes."""
        if reason.code not in current_state.OF_NODES or not (reason.closed or self._present.closed):
            return reason
        if reason.code is ReasonCode.NO_NODES and not self._present.closed:
            return reason  # nodes were added meanwhile
        key = id(reason)
        if key not in self._closed:
            self._kept[key] = reason
            self._closed[key] = replace(reason, closed=self._present.closed_for(reason))
        return self._closed[key]

    def _with_figures_of_now(self, reason: Reason, now: NowDao | None) -> Reason | None:
        """The reason with the current figures: a full queue may have another usage than an hour ago."""
        if now is None:
            return None
        key = id(reason)
        if key not in self._holds:
            self._kept[key] = reason
            self._holds[key] = current_state.with_current_values(reason, now)
        return self._holds[key]

    def _sentence(self, reason: Reason, no: str) -> str:
        if reason.code in explain_gang.MADE_WHEN_ASKED:
            return reason.sentence()
        sentence = self._sentences.get((id(reason), no))
        if sentence is None:
            self._kept[id(reason)] = reason
            own = replace(reason, preemption=NoPreemptionReason(no) if no else None)
            self._sentences[id(reason), no] = sentence = own.sentence()
        return sentence


def _wants(ask: Ask) -> str:
    """The amounts of an ask, for a reason without a single type."""
    return f"It asks for {join_words(_amounts(ask))}."


def _reported(allocation: Allocation) -> str:
    return f"{allocation.key} of {allocation.app_id or 'another manager'} ({join_words(_amounts(allocation))})"


def _amounts(obj: Ask | Allocation) -> list[str]:
    return [format_amount(name, value) for name, value in sorted(obj.shape.quantities.items())]


def _one_sentence(ask: Ask, reason: Reason, since_ns: int, now_ns: int) -> str:
    """The ask, its waiting time, and its reason."""
    who = f"{'Placeholder' if ask.placeholder else 'Ask'} {ask.key} of application {ask.app.app_id}"
    waited = f"has waited for {format_duration(now_ns - ask.created_ns)}"
    if lasts(ask.created_ns, since_ns):  # else it has had this reason since its arrival
        waited += f", the last {format_duration(now_ns - since_ns)} of it" if lasts(since_ns, now_ns) else ", just now"
    return f"{who} {waited} because {reason.clause()}."


def _refusals(ask: Ask) -> list[RefusedNodeDao]:
    refused = list(ask.refusals.nodes.values())[-REFUSALS_KEPT:] if ask.refusals is not None else []
    return [
        RefusedNodeDao(
            node=refusal.node_id, reason=refusal.reason, since=refusal.refused_ns, unanswered=refusal.unanswered
        )
        for refusal in refused
    ]


# ---- everything that waits -------------------------------------------------------------------------------------------


def pending(state: RmEntry, now_ns: int) -> Pieces:
    """Every pending ask with its reason, and the number of pending allocations by reason.

    ``{"rm": …, "pending": [PendingDao …], "counts": {code: pending allocations}}``
    """
    counts: Counter[str] = Counter()
    asks: list[tuple[Explainer, Ask]] = []
    for partition in state.core.partitions.values():
        explainer = _explainer(state, partition, now_ns)
        asks += [(explainer, ask) for ask in _asks(partition)]

    def shown(of: tuple[Explainer, Ask]) -> PendingDao:
        explainer, ask = of
        pending_ask = explainer.ask(ask)
        counts[pending_ask.reason] += ask.pending
        return pending_ask

    yield b'{"rm":%b,"pending":[' % go_json(state.info.rm_id)
    yield from small((of for of in asks if not of[1].gone), shown)
    yield b'],"counts":%b}\n' % go_json(dict(counts))


def summary(state: RmEntry, description: str) -> SummaryDao:
    """The RM's state, its allocations, and pending ones by reason: O(pending asks), for polling.

    :param description: the meaning of the RM's state.
    """
    pause, turns = pause_of(state), turns_of(state)
    counts: Counter[str] = Counter()
    for partition in state.core.partitions.values():
        for app in partition.apps.values():
            if app.asks:
                counts += _counts(app, pause, turns=turns)
    return SummaryDao(
        rm=state.info.rm_id,
        life=state.info.life,
        life_since=state.info.life_ns,
        held=state.info.paused,
        description=description,
        allocated=dao.total_containers(state.core.partitions.values()),
        pending=counts.total(),
        counts=dict(counts),
    )


def _counts(app: Application, pause: Reason | None, *, turns: ScopeWaits) -> Counter[str]:
    """The missing allocations of an application, by reason."""
    counts: Counter[str] = Counter()
    for ask, code in reasons(app, pause=pause, turns=turns):
        counts[code] += ask.pending
    return counts


def reasons(app: Application, *, pause: Reason | None, turns: ScopeWaits) -> Iterator[tuple[Ask, str]]:
    """Yields the pending asks of an application, each with its reason's code. Asks of one group share a reason."""
    codes: dict[AskGroup, str] = {}
    for ask in app.asks.values():
        group = ask.group
        code = codes.get(group) if group is not None else None
        if code is None:
            code = reason_of(ask, pause=pause, turns=turns).code.value
            if group is not None:
                codes[group] = code
        yield ask, code


def _asks(partition: Partition) -> Iterator[Ask]:
    for app in partition.apps.values():
        if app.asks:
            yield from app.asks.values()


def _explainer(state: RmEntry, partition: Partition, now_ns: int) -> Explainer:
    victims = explain_preemption.victims_of(partition)
    return Explainer(
        partition, victims, now_ns, pause=pause_of(state), pauses=past_pauses(state), turns=turns_of(state)
    )


# ---- one of them -----------------------------------------------------------------------------------------------------


def ask(state: RmEntry, partition: Partition, ask: Ask, now_ns: int) -> PendingDao:
    """One pending ask."""
    victims = explain_preemption.victims_of(partition) if ask.preempts else {}
    return Explainer(
        partition, victims, now_ns, pause=pause_of(state), pauses=past_pauses(state), turns=turns_of(state)
    ).ask(ask)


def application(state: RmEntry, partition: Partition, app: Application, now_ns: int) -> Pieces:
    """An application: why it may not run, its pending asks, its preempted allocations, and its gang.

    An ``ApplicationDao``: its head, then its lists.
    """
    pause = pause_of(state)
    turns = turns_of(state)
    counts = _counts(app, pause, turns=turns)
    gang = explain_gang.of_application(partition, app, partial(reason_of, pause=pause, turns=turns))
    rejected = app.state is AppState.REJECTED
    history = wait_history.of_application(app, partial(reason_of, pause=pause, turns=turns), past_pauses(state))
    waits = _as_now(partition, app) if app.reason is not None and app.reason.code.value in counts else None
    head = ApplicationHeadDao(
        partition=partition.name,
        application_id=app.app_id,
        queue=app.requested_queue if rejected else app.queue.path,
        state=app.state.value,
        since=app.state_log[-1][0] if app.state_log else app.submitted_ns,
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
        (b"asks", small((ask for ask in sorted(app.asks.values(), key=_came) if not ask.gone), explainer.ask)),
        (b"preempted", small(explain_preemption.of_application(app), _preempted_by(partition, now_ns))),
        (b"replacements", small(explain_gang.replacements(app), explain_gang.replacement)),
    ]
    yield go_json(head)[:-1]
    for name, pieces in lists:
        yield b',"%b":[' % name
        yield from pieces
        yield b"]"
    yield b"}\n"


def no_ask(app: Application, key: str, now_ns: int) -> str:
    """The answer for a key without a pending ask."""
    allocations = app.allocations_of(key)
    if not allocations:
        return "Ask not found: no ask or allocation has this key"
    last = allocations[-1]
    return f"Ask not found: it was allocated {format_duration(now_ns - last.allocated_ns)} ago, on node {last.node_id}"


def find_finished(partition: Partition, app_id: str) -> Application | None:
    """The last finished or rejected application of the id, while Muster keeps it."""
    candidates = (partition.apps.get(app_id), partition.rejected.get(app_id))
    return max((app for app in candidates if app is not None), key=lambda app: app.finished_ns, default=None)


def _as_now(partition: Partition, app: Application) -> Reason | None:
    """Why the whole application waits, with the current figures."""
    reason = app.reason
    if reason is None:
        return None
    return current_state.with_current_values(reason, CurrentState(partition).of(app, reason)) or reason


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


def end_clause(app: Application, now_ns: int) -> str:
    """The end of an application and its time, as words that follow the application's name."""
    return f"{_ENDS.get(app.state, 'ended')} {format_duration(now_ns - app.finished_ns)} ago"


def _because(app: Application) -> str:
    """Why it fails or has failed, as words that follow its state; "": it does not fail, its gang says why, or that is
    not known.
    """
    return f" ({app.failed_message})" if app.failed_message not in ("", TIMEOUT_MESSAGE) else ""


def _rejected(app: Application, now_ns: int) -> str:
    return f"Application {app.app_id} {end_clause(app, now_ns)}: {app.rejected_message}."


def _has(app: Application) -> str:
    """The number of its allocations, and of those that are being released, as text."""
    count = len(app.allocations)
    releasing = sum(allocation.releasing for allocation in app.allocations.values())
    if not releasing:
        return f"has {pluralize(count, 'allocation') if count else 'no allocation'}"
    which = f"{releasing:,} of which" if releasing < count else "which" if count == 1 else "all of which"
    return f"has {pluralize(count, 'allocation')}, {which} {'is' if releasing == 1 else 'are'} being released,"


def _application_one(
    app: Application, waits: Reason | None, counts: Counter[str], history: list[EpisodeDao], now_ns: int
) -> str:
    """Its allocations, its missing ones, and their most frequent reason with its duration.

    :param waits: why the whole application waits; None: it does not, or the scheduler makes no decisions.
    """
    if app.state in _ENDS and app.finished_ns:
        return f"Application {app.app_id} {end_clause(app, now_ns)}{_because(app)}."
    pending = counts.total()
    status = f"Application {app.app_id} is {app.state.lower()}{_because(app)}, {_has(app)}"
    if not pending:
        return f"{status} and wants no more."
    if waits is not None:
        waited = format_duration(now_ns - waits.since_ns)
        return f"{status} and wants {pending:,} more, but has waited for {waited} because {waits.clause()}."
    code, most = min(counts.items(), key=lambda item: (-item[1], item[0]))
    which = "which" if most == pending else f"of which {most:,}"
    behind = f"{'waits' if most == 1 else 'wait'} {wait_history.wait_clause(history, code, most, now_ns)}"
    return f"{status} and wants {pending:,} more, {which} {behind}."


def _application_sentence(
    app: Application, waits: Reason | None, counts: Counter[str], gang: str, history: list[EpisodeDao], now_ns: int
) -> str:
    if app.state in _ENDS and app.finished_ns:
        return " ".join(text for text in (f"It {end_clause(app, now_ns)}{_because(app)}.", gang) if text)
    pending = counts.total()
    sentences = [f"It is {app.state.lower()}{_because(app)}."]
    sentences.append(f"It {_has(app).removesuffix(',')}, and wants {f'{pending:,} more' if pending else 'no more'}.")
    sentences.append(gang)
    if waits is not None:
        sentences.append(waits.sentence())
    elif pending:
        sentences += wait_history.sentences(history, now_ns)
    return " ".join(text for text in sentences if text)


# ---- who must go -----------------------------------------------------------------------------------------------------


def preempted(state: RmEntry, now_ns: int, ended: Sequence[PreemptedDao] = ()) -> Pieces:
    """Every preempted allocation. ``{"rm": …, "preempted": [PreemptedDao …], "ended": [PreemptedDao …]}``

    :param ended: those that have ended.
    """
    yield b'{"rm":%b,"preempted":[' % go_json(state.info.rm_id)
    first = True
    for partition in state.core.partitions.values():
        for piece in small(_still_there(explain_preemption.releasing(partition)), _preempted_by(partition, now_ns)):
            yield piece if first else b"," + piece.removeprefix(b",")
            first = False
    yield b'],"ended":%b}\n' % go_json(ended)


def preemption(partition: Partition, allocation: Allocation, now_ns: int) -> PreemptedDao | None:
    """The preemption of one allocation; None: it is not preempted."""
    record = allocation.preempted
    return explain_preemption.preempted(partition, allocation, record, now_ns) if record is not None else None


def preempted_named(partition: Partition, name: str) -> list[Allocation]:
    """The preempted allocations with this key or UUID; keys are unique only within an application."""
    return [
        allocation for allocation in _still_there(explain_preemption.releasing(partition)) if name in _names(allocation)
    ]


def _names(allocation: Allocation) -> tuple[str, ...]:
    return (allocation.unique_key, allocation.uuid) if allocation.uuid else (allocation.unique_key,)


def _still_there(allocations: Iterable[Allocation]) -> Iterator[Allocation]:
    for allocation in allocations:
        if not allocation.gone:
            yield allocation


def _preempted_by(partition: Partition, now_ns: int) -> Callable[[Allocation], PreemptedDao]:
    def tell(allocation: Allocation) -> PreemptedDao:
        assert allocation.preempted is not None, f"{allocation} was not preempted"
        return explain_preemption.preempted(partition, allocation, allocation.preempted, now_ns)

    return tell
