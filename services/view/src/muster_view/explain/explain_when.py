"""When will an ask run? Shows a forecast (muster_whatif.when) as an answer with its sentences."""

from __future__ import annotations

from muster_core.model.application import Ask
from muster_core.model.words import count, lasted
from muster_rest.shapes.explain import WhenDao
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
    unknown, declared, learnt = (each.get(partition, 0) for each in (told.unknown, told.declared, told.learnt))
    state, why, sentence = _state(wanted, found, told.runs, unknown, now_ns)
    basis = [f"{count(told.runs, 'simulation')} of the present state"]
    known = [f"{number:,} {name}" for number, name in ((declared, "declared"), (learnt, "learnt")) if number]
    if known:
        basis.append(f"lengths of running allocations: {' and '.join(known)}")
    if unknown:
        basis.append(f"{unknown:,} unknown, which hold their room to the end")
    message = f"{sentence} It rests on {', '.join(basis)}. Asks that come are taken to come as before."
    return WhenDao(
        partition=partition,
        application_id=wanted.app.app_id,
        allocation_key=wanted.key,
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
        message=message,
    )


def _state(wanted: Ask, found: OfAsk, runs: int, unknown: int, now_ns: int) -> tuple[str, str, str]:
    """Returns the state, the code of the reason, and the sentence."""
    who = _who(wanted)
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
