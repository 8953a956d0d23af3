"""Shows two futures (muster_whatif.forecast.config_comparison) as an answer with its sentence."""

from __future__ import annotations

from muster_core.model.text_format import pluralize
from muster_rest.shapes.explain import FutureQueueDao, FuturesDao, OutlookDao, RiseDao
from muster_whatif.forecast.forecaster import ComparisonReply
from muster_whatif.forecast.messages import ComparisonResult


def not_ready(partition: str, now_ns: int) -> FuturesDao:
    """They are not ready."""
    return _without(partition, "MAKING", now_ns, "Both futures are being simulated: ask again in a few seconds.")


def paused(partition: str, now_ns: int, clause: str) -> FuturesDao:
    """The scheduler makes no decisions."""
    return _without(partition, "UNKNOWN", now_ns, f"Neither future is known, because {clause}.")


def answer(partition: str, reply: ComparisonReply) -> FuturesDao:
    """An answer from both futures, or why there are none."""
    if reply.problems:
        message = f"It would be refused: {pluralize(len(reply.problems), 'problem')}."
        return _without(partition, "REFUSED", reply.at_ns, message, list(reply.problems))
    if reply.compared is None:
        return _without(partition, "UNKNOWN", reply.at_ns, f"Neither future is known, because {reply.why}.")
    return _compared(partition, reply.at_ns, reply.compared)


def _compared(partition: str, at_ns: int, result: ComparisonResult) -> FuturesDao:
    queues = [
        FutureQueueDao(queue=queue.queue, asks=queue.asks, present=_outlook(queue.present), other=_outlook(queue.other))
        for queue in result.queues
        if queue.partition == partition
    ]
    rise = next((rise for rise in result.rises if rise.partition == partition), None)
    asks = sum(queue.asks for queue in queues)
    return FuturesDao(
        partition=partition,
        state="COMPARED",
        problems=[],
        queues=queues,
        rise=RiseDao(moments=rise.moments_s, present=rise.present, other=rise.other) if rise is not None else None,
        simulations=result.runs,
        at=at_ns,
        message=(
            f"{pluralize(asks, 'waiting ask')}, {pluralize(result.runs, 'simulation')} of the present state under each "
            "configuration. Asks that come are taken to come as before."
        ),
    )


def _outlook(outlook: tuple[float, float | None, float | None]) -> OutlookDao:
    started, half_s, most_s = outlook
    return OutlookDao(started=started, half=half_s, most=most_s)


def _without(partition: str, state: str, at_ns: int, message: str, problems: list[str] | None = None) -> FuturesDao:
    return FuturesDao(
        partition=partition,
        state=state,
        problems=problems or [],
        queues=[],
        rise=None,
        simulations=0,
        at=at_ns,
        message=message,
    )
