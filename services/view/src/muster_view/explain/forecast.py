"""When will an ask run, and when those of an application? Shows a forecast of muster_whatif, with its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster_core.model.application import Application, Ask
from muster_core.model.text_format import format_duration, pluralize
from muster_rest.shapes.explain import RowWhenDao, WhenDao
from muster_whatif.forecast.forecast import HORIZON_S
from muster_whatif.forecast.forecaster import ForecastReply
from muster_whatif.forecast.messages import AskEstimate

_NS_PER_S = 1_000_000_000
_DAY_S = 86_400


def not_ready(partition: str, ask: Ask, now_ns: int) -> WhenDao:
    """The forecast is not ready."""
    return _unknown(partition, ask, now_ns, "MAKING", "", "is being computed: ask again in a few seconds")


def paused(partition: str, ask: Ask, now_ns: int, clause: str) -> WhenDao:
    """The scheduler makes no decisions."""
    return _unknown(partition, ask, now_ns, "UNKNOWN", "NOT_DECIDING", f"is not known, because {clause}")


def answer(partition: str, ask: Ask, reply: ForecastReply, now_ns: int) -> WhenDao:
    """An answer from a forecast."""
    if reply.why:
        return _unknown(partition, ask, reply.at_ns, "UNKNOWN", "NOT_SIMULATED", f"is not known, because {reply.why}")
    estimate = reply.asks.get((partition, ask.app.app_id, ask.key))
    if estimate is None:  # it came while the forecast was made
        return not_ready(partition, ask, now_ns)
    return _forecast(_who(ask), estimate, reply, now_ns)


def _forecast(who: str, estimate: AskEstimate, reply: ForecastReply, now_ns: int, then: str = "now") -> WhenDao:
    """An ask's forecast as an answer, which begins with ``who``. ``then``: the word for the moment that counts."""
    unknown, declared, learnt = (
        counts.get(estimate.partition, 0) for counts in (reply.unknown, reply.declared, reply.learnt)
    )
    state, reason_code, sentence = _state(who, estimate, reply.runs, unknown, now_ns, then)
    return WhenDao(
        partition=estimate.partition,
        application_id=estimate.application_id,
        allocation_key=estimate.key,
        state=state,
        why=reason_code,
        earliest=estimate.earliest_ns,
        likely=estimate.likely_ns,
        latest=estimate.latest_ns,
        simulations=reply.runs,
        started=estimate.started,
        declared=declared,
        learnt=learnt,
        unknown=unknown,
        at=reply.at_ns,
        sentence=sentence,
        message=f"{sentence} {_basis(estimate.partition, reply)}",
    )


def _basis(partition: str, reply: ForecastReply) -> str:
    """What a forecast rests on, as a sentence."""
    unknown, declared, learnt = (counts.get(partition, 0) for counts in (reply.unknown, reply.declared, reply.learnt))
    basis = [f"{pluralize(reply.runs, 'simulation')} of the present state"]
    lengths = [f"{number:,} {name}" for number, name in ((declared, "declared"), (learnt, "learnt")) if number]
    if lengths:
        basis.append(f"lengths of running allocations: {' and '.join(lengths)}")
    if unknown:
        basis.append(f"{unknown:,} unknown, which hold their room to the end")
    return f"It rests on {', '.join(basis)}. Asks that come are taken to come as before."


def _state(who: str, estimate: AskEstimate, runs: int, unknown: int, now_ns: int, then: str) -> tuple[str, str, str]:
    """Returns the state, the code of the reason, and the sentence."""
    days = round(HORIZON_S / _DAY_S)
    if estimate.latest_ns:
        if estimate.latest_ns - now_ns <= _NS_PER_S:
            return "ESTIMATED", "", f"{who} will start at once, in 8 of 10 cases."
        between = (
            f"between {_from_now(estimate.earliest_ns, now_ns)} and {_from_now(estimate.latest_ns, now_ns)} from {then}"
        )
        likely = _from_now(estimate.likely_ns, now_ns)
        return "ESTIMATED", "", f"{who} will start in about {likely}; in 8 of 10 cases {between}."
    if estimate.started:
        reason_code = "LENGTHS_UNKNOWN" if unknown else "BEYOND_HORIZON"
        part = f"in {estimate.started} of {runs} simulations it starts within {days} days"
        if estimate.earliest_ns:
            part += f", in 9 of 10 not before {_from_now(estimate.earliest_ns, now_ns)} from {then}"
        return "PARTLY", reason_code, f"{who} may start late: {part}."
    if unknown:
        clause = (
            f"is not known: the lengths of {pluralize(unknown, 'running allocation')} are neither declared nor learnt"
        )
        return "UNKNOWN", "LENGTHS_UNKNOWN", f"When {_lower(who)} will start {clause}."
    return "UNKNOWN", "NEVER_STARTS", f"{who} starts in none of {runs} simulations, although all that runs ends."


# ---- the asks of an application that wait for one reason ------------------------------------------------------------


def row_since_ns(app: Application, codes: Sequence[tuple[Ask, str]], reason: str) -> int:
    """The time that the state of a forecast for a row must have: when its newest ask came."""
    alike = [ask for ask, code in codes if code == reason] or list(app.asks.values())
    return max((ask.demand.created_ns for ask in alike), default=0)


class Row(NamedTuple):
    """The asks of an application that a question is about.

    :ivar app: None: Muster does not know it any more.
    :ivar reason: for which they wait; "": for any.
    :ivar since_ns: the state of a forecast for them is not older.
    """

    partition: str
    application_id: str
    app: Application | None
    reason: str
    since_ns: int


def row_unknown(row: Row, at_ns: int, clause: str) -> RowWhenDao:
    """No forecast is made: the scheduler makes no decisions."""
    sentence = f"When asks of application {row.application_id} will start is not known, because {clause}."
    return _row(row, "UNKNOWN", at_ns, [sentence], reason_code="NOT_DECIDING")


def row_making(row: Row, at_ns: int) -> RowWhenDao:
    """The forecast is not ready."""
    subject = f"When asks of application {row.application_id} will start"
    return _row(row, "MAKING", at_ns, [f"{subject} is being computed: ask again in a few seconds."])


def row_explained(row: Row, reply: ForecastReply, now_ns: int) -> RowWhenDao:
    """When the first and the last ask of a row start, and what has started since the forecast was begun."""
    name, app = f"application {row.application_id}", row.app
    if reply.why:
        sentence = f"When asks of {name} will start is not known, because {reply.why}."
        return _row(row, "UNKNOWN", reply.at_ns, [sentence], reason_code="NOT_SIMULATED")
    every = list(reply.of_application(row.partition, row.application_id))
    asks = [estimate for estimate, code in every if not row.reason or code == row.reason]
    sentences = []
    if not asks and every:
        sentences.append(f"No ask of {name} waits for this reason any more.")
        asks = [estimate for estimate, _ in every]
    waiting = app.asks if app is not None else {}
    asks.sort(key=_when)
    still = [estimate for estimate in asks if estimate.key in waiting]
    allocations = [
        started[-1]
        for estimate in asks
        if app is not None and estimate.key not in waiting and (started := app.allocations_of(estimate.key))
    ]
    ended = len(asks) - len(still) - len(allocations)
    if not still:
        sentences.append(
            _all_started(
                name, len(asks), max((estimate.allocated_ns for estimate in allocations), default=0), ended, now_ns
            )
        )
        if newer := sum((row.partition, row.application_id, key) not in reply.asks for key in waiting):
            sentences.append(f"{pluralize(newer, 'newer ask')} of it {'waits' if newer == 1 else 'wait'} now.")
        answer = _row(row, "STARTED", reply.at_ns, sentences, len(asks), len(allocations))
        if asks:  # what was to be expected of them, as of then
            passed = format_duration(max(now_ns - reply.at_ns, 0))
            _add(answer, asks, name, reply, reply.at_ns, f"The simulations, which began {passed} ago, say:")
        return answer
    if allocations:
        sentences.append(
            f"Meanwhile {len(allocations):,} of its {len(asks):,} asks "
            f"{'has' if len(allocations) == 1 else 'have'} started."
        )
    if ended:
        sentences.append(f"Of its {len(asks):,} asks {_are_over(ended)}.")
    answer = _row(row, "FORECAST", reply.at_ns, sentences, len(asks), len(allocations))
    _add(answer, still, name, reply, now_ns)
    return answer


def _add(
    answer: RowWhenDao, asks: Sequence[AskEstimate], name: str, reply: ForecastReply, now_ns: int, begin: str = ""
) -> None:
    """Adds the first and the last of some asks to an answer: objects, and sentences as of a moment."""
    then = "then" if begin else "now"
    answer.first = _forecast(_of_row("first", asks, name), asks[0], reply, now_ns, then)
    answer.last = _forecast(_of_row("last", asks, name), asks[-1], reply, now_ns, then)
    sentences = [answer.sentence, begin, answer.first.sentence]
    sentences += [answer.last.sentence] if answer.first.sentence != answer.last.sentence else []
    answer.sentence = " ".join(text for text in sentences if text)
    answer.message = f"{answer.sentence} {_basis(answer.partition, reply)}"


def _when(estimate: AskEstimate) -> tuple[bool, int, bool, int, int]:
    """Sorts forecasts by when their asks start; those that start in few simulations, or in none, come last."""
    return not estimate.likely_ns, estimate.likely_ns, not estimate.earliest_ns, estimate.earliest_ns, -estimate.started


def _of_row(position: str, still: Sequence[AskEstimate], name: str) -> str:
    """The subject of a sentence: one ask, each of them if all start alike, or the first or last of them."""
    first, last = still[0], still[-1]
    if len(still) == 1:
        return f"Ask {first.key} of {name}"
    if (first.earliest_ns, first.likely_ns, first.latest_ns, first.started) == (
        last.earliest_ns,
        last.likely_ns,
        last.latest_ns,
        last.started,
    ):
        return f"Each of {len(still):,} asks of {name}"
    return f"The {position} of {len(still):,} asks of {name}" if position == "first" else "The last of them"


def _all_started(name: str, asks: int, newest_ns: int, ended: int, now_ns: int) -> str:
    if not asks:
        return (
            f"No ask of {name} was pending any more when the simulations began: they have started, or were withdrawn."
        )
    ago = f", the last {format_duration(max(now_ns - newest_ns, 0))} ago" if newest_ns else ""
    if not ended:
        who = f"All {asks:,} asks of {name} have" if asks > 1 else f"The ask of {name} has"
        return f"{who} started meanwhile{ago}."
    if ended < asks:
        return f"No ask of {name} is pending any more: {asks - ended:,} of {asks:,} run{ago}; {_are_over(ended)}."
    return f"No ask of {name} is pending any more: {_are_over(ended)}."


def _are_over(asks: int) -> str:
    """What has become of asks that neither wait nor run."""
    if asks == 1:
        return "1 has started and ended meanwhile, or was withdrawn"
    return f"{asks:,} have started and ended meanwhile, or were withdrawn"


def _row(
    row: Row, state: str, at_ns: int, sentences: Sequence[str], asks: int = 0, started: int = 0, reason_code: str = ""
) -> RowWhenDao:
    return RowWhenDao(
        partition=row.partition,
        application_id=row.application_id,
        reason=row.reason,
        state=state,
        why=reason_code,
        asks=asks,
        started=started,
        first=None,
        last=None,
        since=row.since_ns,
        at=at_ns,
        sentence=" ".join(sentences),
        message=" ".join(sentences),
    )


# ---- words -----------------------------------------------------------------------------------------------------------


def _unknown(partition: str, ask: Ask, at_ns: int, state: str, reason_code: str, clause: str) -> WhenDao:
    sentence = f"When {_lower(_who(ask))} will start {clause}."
    return WhenDao(
        partition=partition,
        application_id=ask.app.app_id,
        allocation_key=ask.key,
        state=state,
        why=reason_code,
        earliest=0,
        likely=0,
        latest=0,
        simulations=0,
        started=0,
        declared=0,
        learnt=0,
        unknown=0,
        at=at_ns,
        sentence=sentence,
        message=sentence,
    )


def _who(ask: Ask) -> str:
    return f"{'Placeholder' if ask.placeholder else 'Ask'} {ask.key} of application {ask.app.app_id}"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _from_now(moment_ns: int, now_ns: int) -> str:
    return format_duration(max(moment_ns - now_ns, 0))
