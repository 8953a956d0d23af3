"""When will an ask run, and when those of an application? Shows a forecast (muster_whatif.when) with its sentences."""

from __future__ import annotations

from collections.abc import Sequence

from muster_core.model.application import Application, Ask
from muster_core.model.words import count, lasted
from muster_core.partition import Partition
from muster_rest.shapes.explain import RowWhenDao, WhenDao
from muster_whatif.when.forecast import HORIZON_S
from muster_whatif.when.forecaster import Told
from muster_whatif.when.messages import OfAsk

_NS_PER_S = 1_000_000_000
_DAY_S = 86_400


def making(partition: str, wanted: Ask, now_ns: int) -> WhenDao:
    """The forecast is not ready."""
    return _unknown(partition, wanted, now_ns, "MAKING", "", "is being computed: ask again in a few seconds")


def paused(partition: str, wanted: Ask, now_ns: int, clause: str) -> WhenDao:
    """The scheduler makes no decisions."""
    return _unknown(partition, wanted, now_ns, "UNKNOWN", "NOT_DECIDING", f"is not known, because {clause}")


def explained(partition: str, wanted: Ask, told: Told, now_ns: int) -> WhenDao:
    """An answer from a forecast."""
    if told.why:
        return _unknown(partition, wanted, told.at_ns, "UNKNOWN", "NOT_SIMULATED", f"is not known, because {told.why}")
    found = told.asks.get((partition, wanted.app.app_id, wanted.key))
    if found is None:  # it came while the forecast was made
        return making(partition, wanted, now_ns)
    return _forecast(_who(wanted), found, told, now_ns)


def _forecast(who: str, found: OfAsk, told: Told, now_ns: int) -> WhenDao:
    """An ask's forecast as an answer, which begins with ``who``."""
    unknown, declared, learnt = (each.get(found.partition, 0) for each in (told.unknown, told.declared, told.learnt))
    state, why, sentence = _state(who, found, told.runs, unknown, now_ns)
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


def _basis(partition: str, told: Told) -> str:
    """What a forecast rests on, as a sentence."""
    unknown, declared, learnt = (each.get(partition, 0) for each in (told.unknown, told.declared, told.learnt))
    basis = [f"{count(told.runs, 'simulation')} of the present state"]
    known = [f"{number:,} {name}" for number, name in ((declared, "declared"), (learnt, "learnt")) if number]
    if known:
        basis.append(f"lengths of running allocations: {' and '.join(known)}")
    if unknown:
        basis.append(f"{unknown:,} unknown, which hold their room to the end")
    return f"It rests on {', '.join(basis)}. Asks that come are taken to come as before."


def _state(who: str, found: OfAsk, runs: int, unknown: int, now_ns: int) -> tuple[str, str, str]:
    """Returns the state, the code of the reason, and the sentence."""
    days = round(HORIZON_S / _DAY_S)
    if found.latest_ns:
        if found.latest_ns - now_ns <= _NS_PER_S:
            return "ESTIMATED", "", f"{who} will start at once, in 8 of 10 cases."
        between = f"between {_from_now(found.earliest_ns, now_ns)} and {_from_now(found.latest_ns, now_ns)} from now"
        likely = _from_now(found.likely_ns, now_ns)
        return "ESTIMATED", "", f"{who} will start in about {likely}; in 8 of 10 cases {between}."
    if found.started:
        why = "LENGTHS_UNKNOWN" if unknown else "BEYOND_HORIZON"
        part = f"in {found.started} of {runs} simulations it starts within {days} days"
        if found.earliest_ns:
            part += f", in 9 of 10 not before {_from_now(found.earliest_ns, now_ns)} from now"
        return "PARTLY", why, f"{who} may start late: {part}."
    if unknown:
        told = f"is not known: the lengths of {count(unknown, 'running allocation')} are neither declared nor learnt"
        return "UNKNOWN", "LENGTHS_UNKNOWN", f"When {_lower(who)} will start {told}."
    return "UNKNOWN", "NEVER_STARTS", f"{who} starts in none of {runs} simulations, although all that runs ends."


# ---- the asks of an application that wait for one reason ------------------------------------------------------------


def row_since_ns(app: Application, codes: Sequence[tuple[Ask, str]], reason: str) -> int:
    """The time that the state of a forecast for a row must have: when its newest ask came."""
    alike = [wanted for wanted, code in codes if code == reason] or list(app.asks.values())
    return max((wanted.demand.created_ns for wanted in alike), default=0)


def row_unknown(
    partition: Partition, app: Application, reason: str, since_ns: int, at_ns: int, clause: str
) -> RowWhenDao:
    """No forecast is made: the scheduler makes no decisions."""
    sentence = f"When asks of application {app.app_id} will start is not known, because {clause}."
    return _row(partition, app, reason, "UNKNOWN", since_ns, at_ns, sentence, why="NOT_DECIDING")


def row_making(partition: Partition, app: Application, reason: str, since_ns: int, at_ns: int) -> RowWhenDao:
    """The forecast is not ready."""
    sentence = f"When asks of application {app.app_id} will start is being computed: ask again in a few seconds."
    return _row(partition, app, reason, "MAKING", since_ns, at_ns, sentence)


def row_explained(
    partition: Partition, app: Application, reason: str, told: Told, since_ns: int, now_ns: int
) -> RowWhenDao:
    """When the first and the last ask of a row start, and what has started since the forecast was begun."""
    name = f"application {app.app_id}"
    if told.why:
        sentence = f"When asks of {name} will start is not known, because {told.why}."
        return _row(partition, app, reason, "UNKNOWN", since_ns, told.at_ns, sentence, why="NOT_SIMULATED")
    asks = list(told.of_application(partition.name, app.app_id))
    row = [found for found, code in asks if code == reason] if reason else [found for found, _ in asks]
    said = []
    if not row and asks:
        said.append(f"No ask of {name} waits for this reason any more.")
        row = [found for found, _ in asks]
    still = sorted((each for each in row if each.key in app.asks), key=_when)
    held = [held[-1] for each in row if each.key not in app.asks and (held := app.held(each.key))]
    left = len(row) - len(still) - len(held)
    if not still:
        said.append(_all_started(name, len(row), max((each.allocated_ns for each in held), default=0), left, now_ns))
        if newer := sum((partition.name, app.app_id, key) not in told.asks for key in app.asks):
            said.append(f"{count(newer, 'newer ask')} of it {'waits' if newer == 1 else 'wait'} now.")
        return _row(partition, app, reason, "STARTED", since_ns, told.at_ns, " ".join(said), len(row), len(held))
    if held:
        said.append(f"Meanwhile {len(held):,} of its {len(row):,} asks {'has' if len(held) == 1 else 'have'} started.")
    if left:
        said.append(f"Of its {len(row):,} asks {_are_over(left)}.")
    first = _forecast(_of_row("first", still, name), still[0], told, now_ns)
    last = _forecast(_of_row("last", still, name), still[-1], told, now_ns)
    said += [first.sentence] if first.sentence == last.sentence else [first.sentence, last.sentence]
    found = _row(partition, app, reason, "FORECAST", since_ns, told.at_ns, " ".join(said), len(row), len(held))
    found.first, found.last = first, last
    found.message = f"{found.sentence} {_basis(partition.name, told)}"
    return found


def _when(found: OfAsk) -> tuple[bool, int, bool, int, int]:
    """Sorts forecasts by when their asks start; those that start in few simulations, or in none, come last."""
    return not found.likely_ns, found.likely_ns, not found.earliest_ns, found.earliest_ns, -found.started


def _of_row(place: str, still: Sequence[OfAsk], name: str) -> str:
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
    ago = f", the last {lasted(max(now_ns - newest_ns, 0))} ago" if newest_ns else ""
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
    partition: Partition,
    app: Application,
    reason: str,
    state: str,
    since_ns: int,
    at_ns: int,
    sentence: str,
    asks: int = 0,
    started: int = 0,
    why: str = "",
) -> RowWhenDao:
    return RowWhenDao(
        partition=partition.name,
        application_id=app.app_id,
        reason=reason,
        state=state,
        why=why,
        asks=asks,
        started=started,
        first=None,
        last=None,
        since=since_ns,
        at=at_ns,
        sentence=sentence,
        message=sentence,
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
    return lasted(max(moment_ns - now_ns, 0))
