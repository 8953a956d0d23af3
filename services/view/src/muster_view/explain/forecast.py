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


def not_ready(partition: str, wanted: Ask, now_ns: int) -> WhenDao:
    """The forecast is not ready."""
    return _unknown(partition, wanted, now_ns, "MAKING", "", "is being computed: ask again in a few seconds")


def paused(partition: str, wanted: Ask, now_ns: int, clause: str) -> WhenDao:
    """The scheduler makes no decisions."""
    return _unknown(partition, wanted, now_ns, "UNKNOWN", "NOT_DECIDING", f"is not known, because {clause}")


def answer(partition: str, wanted: Ask, told: ForecastReply, now_ns: int) -> WhenDao:
    """An answer from a forecast."""
    if told.why:
        return _unknown(partition, wanted, told.at_ns, "UNKNOWN", "NOT_SIMULATED", f"is not known, because {told.why}")
    found = told.asks.get((partition, wanted.app.app_id, wanted.key))
    if found is None:  # it came while the forecast was made
        return not_ready(partition, wanted, now_ns)
    return _forecast(_who(wanted), found, told, now_ns)


def _forecast(who: str, found: AskEstimate, told: ForecastReply, now_ns: int, then: str = "now") -> WhenDao:
    """An ask's forecast as an answer, which begins with ``who``. ``then``: the word for the moment that counts."""
    unknown, declared, learnt = (each.get(found.partition, 0) for each in (told.unknown, told.declared, told.learnt))
    state, why, sentence = _state(who, found, told.runs, unknown, now_ns, then)
    return WhenDao(
        partition=found.partition,
        application_id=found.application_id,
        allocation_key=found.key,
        state=state,
        why=why,
        earliest=found.earliest_ns,
        likely=found.likely_ns,
        latest=found.latest_ns,
        simulations=told.runs,
        started=found.started,
        declared=declared,
        learnt=learnt,
        unknown=unknown,
        at=told.at_ns,
        sentence=sentence,
        message=f"{sentence} {_basis(found.partition, told)}",
    )


def _basis(partition: str, told: ForecastReply) -> str:
    """What a forecast rests on, as a sentence."""
    unknown, declared, learnt = (each.get(partition, 0) for each in (told.unknown, told.declared, told.learnt))
    basis = [f"{pluralize(told.runs, 'simulation')} of the present state"]
    known = [f"{number:,} {name}" for number, name in ((declared, "declared"), (learnt, "learnt")) if number]
    if known:
        basis.append(f"lengths of running allocations: {' and '.join(known)}")
    if unknown:
        basis.append(f"{unknown:,} unknown, which hold their room to the end")
    return f"It rests on {', '.join(basis)}. Asks that come are taken to come as before."


def _state(who: str, found: AskEstimate, runs: int, unknown: int, now_ns: int, then: str) -> tuple[str, str, str]:
    """Returns the state, the code of the reason, and the sentence."""
    days = round(HORIZON_S / _DAY_S)
    if found.latest_ns:
        if found.latest_ns - now_ns <= _NS_PER_S:
            return "ESTIMATED", "", f"{who} will start at once, in 8 of 10 cases."
        between = f"between {_from_now(found.earliest_ns, now_ns)} and {_from_now(found.latest_ns, now_ns)} from {then}"
        likely = _from_now(found.likely_ns, now_ns)
        return "ESTIMATED", "", f"{who} will start in about {likely}; in 8 of 10 cases {between}."
    if found.started:
        why = "LENGTHS_UNKNOWN" if unknown else "BEYOND_HORIZON"
        part = f"in {found.started} of {runs} simulations it starts within {days} days"
        if found.earliest_ns:
            part += f", in 9 of 10 not before {_from_now(found.earliest_ns, now_ns)} from {then}"
        return "PARTLY", why, f"{who} may start late: {part}."
    if unknown:
        told = (
            f"is not known: the lengths of {pluralize(unknown, 'running allocation')} are neither declared nor learnt"
        )
        return "UNKNOWN", "LENGTHS_UNKNOWN", f"When {_lower(who)} will start {told}."
    return "UNKNOWN", "NEVER_STARTS", f"{who} starts in none of {runs} simulations, although all that runs ends."


# ---- the asks of an application that wait for one reason ------------------------------------------------------------


def row_since_ns(app: Application, codes: Sequence[tuple[Ask, str]], reason: str) -> int:
    """The time that the state of a forecast for a row must have: when its newest ask came."""
    alike = [wanted for wanted, code in codes if code == reason] or list(app.asks.values())
    return max((wanted.demand.created_ns for wanted in alike), default=0)


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
    return _row(row, "UNKNOWN", at_ns, [sentence], why="NOT_DECIDING")


def row_making(row: Row, at_ns: int) -> RowWhenDao:
    """The forecast is not ready."""
    what = f"When asks of application {row.application_id} will start"
    return _row(row, "MAKING", at_ns, [f"{what} is being computed: ask again in a few seconds."])


def row_explained(row: Row, told: ForecastReply, now_ns: int) -> RowWhenDao:
    """When the first and the last ask of a row start, and what has started since the forecast was begun."""
    name, app = f"application {row.application_id}", row.app
    if told.why:
        sentence = f"When asks of {name} will start is not known, because {told.why}."
        return _row(row, "UNKNOWN", told.at_ns, [sentence], why="NOT_SIMULATED")
    every = list(told.of_application(row.partition, row.application_id))
    asks = [found for found, code in every if not row.reason or code == row.reason]
    said = []
    if not asks and every:
        said.append(f"No ask of {name} waits for this reason any more.")
        asks = [found for found, _ in every]
    waiting = app.asks if app is not None else {}
    asks.sort(key=_when)
    still = [each for each in asks if each.key in waiting]
    held = [
        held[-1]
        for each in asks
        if app is not None and each.key not in waiting and (held := app.allocations_of(each.key))
    ]
    left = len(asks) - len(still) - len(held)
    if not still:
        said.append(_all_started(name, len(asks), max((each.allocated_ns for each in held), default=0), left, now_ns))
        if newer := sum((row.partition, row.application_id, key) not in told.asks for key in waiting):
            said.append(f"{pluralize(newer, 'newer ask')} of it {'waits' if newer == 1 else 'wait'} now.")
        found = _row(row, "STARTED", told.at_ns, said, len(asks), len(held))
        if asks:  # what was to be expected of them, as of then
            passed = format_duration(max(now_ns - told.at_ns, 0))
            _add(found, asks, name, told, told.at_ns, f"The simulations, which began {passed} ago, say:")
        return found
    if held:
        said.append(f"Meanwhile {len(held):,} of its {len(asks):,} asks {'has' if len(held) == 1 else 'have'} started.")
    if left:
        said.append(f"Of its {len(asks):,} asks {_are_over(left)}.")
    found = _row(row, "FORECAST", told.at_ns, said, len(asks), len(held))
    _add(found, still, name, told, now_ns)
    return found


def _add(
    found: RowWhenDao, asks: Sequence[AskEstimate], name: str, told: ForecastReply, now_ns: int, begin: str = ""
) -> None:
    """Adds the first and the last of some asks to an answer: objects, and sentences as of a moment."""
    then = "then" if begin else "now"
    found.first = _forecast(_of_row("first", asks, name), asks[0], told, now_ns, then)
    found.last = _forecast(_of_row("last", asks, name), asks[-1], told, now_ns, then)
    said = [found.sentence, begin, found.first.sentence]
    said += [found.last.sentence] if found.first.sentence != found.last.sentence else []
    found.sentence = " ".join(text for text in said if text)
    found.message = f"{found.sentence} {_basis(found.partition, told)}"


def _when(found: AskEstimate) -> tuple[bool, int, bool, int, int]:
    """Sorts forecasts by when their asks start; those that start in few simulations, or in none, come last."""
    return not found.likely_ns, found.likely_ns, not found.earliest_ns, found.earliest_ns, -found.started


def _of_row(place: str, still: Sequence[AskEstimate], name: str) -> str:
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
    return f"The {place} of {len(still):,} asks of {name}" if place == "first" else "The last of them"


def _all_started(name: str, asks: int, newest_ns: int, left: int, now_ns: int) -> str:
    if not asks:
        return (
            f"No ask of {name} was pending any more when the simulations began: they have started, or were withdrawn."
        )
    ago = f", the last {format_duration(max(now_ns - newest_ns, 0))} ago" if newest_ns else ""
    if not left:
        who = f"All {asks:,} asks of {name} have" if asks > 1 else f"The ask of {name} has"
        return f"{who} started meanwhile{ago}."
    if left < asks:
        return f"No ask of {name} is pending any more: {asks - left:,} of {asks:,} run{ago}; {_are_over(left)}."
    return f"No ask of {name} is pending any more: {_are_over(left)}."


def _are_over(asks: int) -> str:
    """What has become of asks that neither wait nor run."""
    if asks == 1:
        return "1 has started and ended meanwhile, or was withdrawn"
    return f"{asks:,} have started and ended meanwhile, or were withdrawn"


def _row(
    row: Row, state: str, at_ns: int, said: Sequence[str], asks: int = 0, started: int = 0, why: str = ""
) -> RowWhenDao:
    return RowWhenDao(
        partition=row.partition,
        application_id=row.application_id,
        reason=row.reason,
        state=state,
        why=why,
        asks=asks,
        started=started,
        first=None,
        last=None,
        since=row.since_ns,
        at=at_ns,
        sentence=" ".join(said),
        message=" ".join(said),
    )


# ---- words -----------------------------------------------------------------------------------------------------------


def _unknown(partition: str, wanted: Ask, at_ns: int, state: str, why: str, told: str) -> WhenDao:
    sentence = f"When {_lower(_who(wanted))} will start {told}."
    return WhenDao(
        partition=partition,
        application_id=wanted.app.app_id,
        allocation_key=wanted.key,
        state=state,
        why=why,
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


def _who(wanted: Ask) -> str:
    return f"{'Placeholder' if wanted.placeholder else 'Ask'} {wanted.key} of application {wanted.app.app_id}"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _from_now(moment_ns: int, now_ns: int) -> str:
    return format_duration(max(moment_ns - now_ns, 0))
