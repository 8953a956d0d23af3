"""The state of a placeholder (``model/states.py`` has the table), and how long placeholders may wait."""

from __future__ import annotations

from muster_si.constants import APP_CREATION_TIME_TAG
from muster_si.tags import time_ns

from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.node import Node
from muster_core.model.states import PLACEHOLDER_TIMEOUT_NS, PlaceholderEvent, PlaceholderState, next_placeholder_state

_TIMEOUT_NS_MIN = 1_000_000


def state_of(placeholder: Allocation) -> PlaceholderState:
    """The placeholder's state, from its fields."""
    if placeholder.gone:
        return PlaceholderState.GONE
    if placeholder.replaced_by is not None:
        return PlaceholderState.LEAVING
    if placeholder.timed_out:
        return PlaceholderState.TIMING_OUT
    return PlaceholderState.PREEMPTED if placeholder.preempted is not None else PlaceholderState.HELD


def move(placeholder: Allocation, event: PlaceholderEvent) -> None:
    """Checks that the event is allowed in the placeholder's state."""
    next_placeholder_state(f"placeholder {placeholder.key}", state_of(placeholder), event)


def fits_after(node: Node, ask: Ask, leaving: Allocation) -> bool:
    """Whether the ask may run on the node once the placeholder has left it."""
    if not node.usable and not ask.demand.required_node:
        return False
    freed = dict(leaving.shape.items)
    return all(value <= node.available[number] + freed.get(number, 0) for number, value in ask.shape.items)


def timeout_setting_ns(app: Application) -> int:
    """How long the application's placeholders may wait, as set: its own time-out, else the default."""
    own_ms = app.execution_timeout_ms if app.placeholder_ask is not None else 0
    return own_ms * 1_000_000 if own_ms > 0 else PLACEHOLDER_TIMEOUT_NS


def timeout_ns(app: Application) -> int:
    """How long the application's placeholders may wait, from the start of their clock.

    This is the configured time, minus the time that an application waited before the RM sent it (after a restart of the
    RM): the tag ``yunikorn.apache.org/creationTime`` has the start, in seconds since the epoch.
    """
    whole_ns = timeout_setting_ns(app)
    created_ns = time_ns(app.tags.get(APP_CREATION_TIME_TAG))
    submitted_ns = app.state_log[0][0] if app.state_log else 0
    if created_ns is not None and 0 < created_ns <= submitted_ns:
        return max(created_ns + whole_ns - submitted_ns, _TIMEOUT_NS_MIN)
    return whole_ns
