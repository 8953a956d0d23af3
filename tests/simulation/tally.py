"""What a simulation must have come to: one that never reaches a feature proves nothing of it.

The lists come from the core's own enumerations where there are some: what is new there must come up here.
"""

from __future__ import annotations

from collections import Counter
from typing import get_args

from muster_scheduler.core.commands import Command, NodeAction, Termination
from muster_scheduler.core.config import NodeSortPolicy
from muster_scheduler.core.objects import PreemptionRule
from muster_scheduler.core.reasons import PreemptionNo, ReasonCode
from muster_scheduler.core.states import APP_TRANSITIONS, AppState

# Reasons that are not there after a cycle that ran to its end, or of what the core does not do yet.
_NO_REASONS = {ReasonCode.WAITING_FOR_TURN, ReasonCode.QUEUE_STOPPED, ReasonCode.RM_STOPPED, ReasonCode.RM_HELD}
_NO_REASONS |= {ReasonCode.SOURCE_LISTING}  # said by the view
# Of gangs, which have lives of their own (gangs_tally.py).
_NO_REASONS |= {
    ReasonCode.GANG_ROOM,
    ReasonCode.GANG_FORMING,
    ReasonCode.PLACEHOLDER_LEAVING,
    ReasonCode.PLACEHOLDER_STUCK,
}
# Said elsewhere than in the record of a reason, or where a search gives up (tests/unit has those).
_NO_NOES = {PreemptionNo.DISABLED, PreemptionNo.NOT_ALLOWED, PreemptionNo.TOO_YOUNG, PreemptionNo.TOO_MANY_WAYS}
# Of gangs, and of what is rejected before it has a state.
_NO_STATES = {AppState.RESUMING, AppState.REJECTED}

_WORDS = """
adopted: changed
adopted: what was asked for
allocation: in order
allocation: on a required node
allocation: on its reserved node
answer: accepted application
answer: accepted node
answer: configuration
answer: new
answer: rejected application
answer: rejected ask
answer: rejected node
answer: released
answer: state
application: id used again
application: removed
application: time is up
ask item: adopted
ask item: foreign
ask item: plain
ask item: repeats
ask item: required node
ask: again after a failure on the RM
ask: changed
ask: changed, for the same amount
configuration: drained queue is back
configuration: leaf and parent change
configuration: partition added
configuration: partition removed
configuration: queue drains
configuration: refused
configuration: taken
confirmed: preempted
confirmed: timeout
cycle: nothing new, nothing said
cycle: stopped by its budget
cycle: to its end
event: does not fit
event: fits again
event: may not run
event: may run again
event: no victim
event: quota preemption
foreign: released
node rejected: negative
node rejected: no such partition
node rejected: not draining
node rejected: twice
node rejected: unknown
queue: gone
queue: made dynamically
queue: made from a template
queue: quota of a namespace
release: STOPPED_BY_RM (ask)
reservation: for a daemon
reservation: its ask is gone
reservation: made
reservation: served
reservation: taken by a daemon or a preempting ask
reservation: timed out
reservation: with victims
restart
restart: with draining queues
restart: with pending asks
restart: with preempted allocations
restart: with reservations
restart: with timed out allocations
state: Completed to Expired
state: Failed to Expired
told: again
told: the cluster is too small
told: time is up
"""

# With fewer lives the rare may be missing by chance.
SEEDS_FOR_ALL = 1_000


def required() -> list[str]:
    """What must have come up in a long run."""
    found = [line for line in _WORDS.splitlines() if line]
    found += [f"command: {kind.__name__}" for kind in get_args(Command)]
    found += [f"node: {action.name}" for action in NodeAction if action is not NodeAction.UNKNOWN]
    found += [f"node order: {policy.value}" for policy in NodeSortPolicy]
    found += [f"release: {kind.name}" for kind in Termination]
    found += [f"preemption: {rule.value}" for rule in PreemptionRule]
    found += [f"reason: {code.value}" for code in ReasonCode if code not in _NO_REASONS]
    found += [f"no preemption: {no.value}" for no in PreemptionNo if no not in _NO_NOES]
    found += [
        f"state: {before} to {after}"
        for (before, _), after in APP_TRANSITIONS.items()
        if before is not after and not _NO_STATES & {before, after} and (before, after) not in _NO_WAYS
    ]
    return sorted(found)


# In the table for gangs only: an application fails before it runs.
_NO_WAYS = {(AppState.NEW, AppState.FAILING), (AppState.ACCEPTED, AppState.FAILING)}


def missing(tally: Counter[str]) -> list[str]:
    """What did not come up."""
    return [kind for kind in required() if not tally[kind]]


def table(tally: Counter[str]) -> str:
    """How often what came up, in two columns."""
    lines = [f"{count:>10,}  {kind}" for kind, count in sorted(tally.items())]
    half = (len(lines) + 1) // 2
    width = max((len(line) for line in lines[:half]), default=0)
    right = [*lines[half:], *[""] * (half - len(lines[half:]))]
    return "\n".join(f"{left:<{width}}  {other}".rstrip() for left, other in zip(lines[:half], right, strict=True))
