"""What a simulation must have come to: one that never reaches a feature proves nothing of it.

The lists come from the core's own enumerations where there are some: what is new there must come up here.
"""

from __future__ import annotations

from collections import Counter
from typing import get_args

from muster_core.model.commands import Command, NodeAction, Termination
from muster_core.model.reasons import NoPreemptionReason, ReasonCode
from muster_core.model.states import APP_TRANSITIONS, AppState
from muster_core.nodes.policies.registry import SHIPPED
from muster_core.preemption import registry

# Reasons that are not there after a cycle that ran to its end, or of what the core does not do yet.
_NO_REASONS = {ReasonCode.WAITING_FOR_TURN, ReasonCode.QUEUE_STOPPED, ReasonCode.RM_STOPPED, ReasonCode.RM_HELD}
_NO_REASONS |= {ReasonCode.SOURCE_LISTING}  # said by the view
# Of gangs, which have lives of their own .
_NO_REASONS |= {
    ReasonCode.GANG_ROOM,
    ReasonCode.GANG_FORMING,
    ReasonCode.PLACEHOLDER_LEAVING,
    ReasonCode.PLACEHOLDER_STUCK,
}
# Said elsewhere than in the record of a reason, or where a search gives up (tests/unit has those).
_NO_NOES = {
    NoPreemptionReason.DISABLED,
    NoPreemptionReason.NOT_ALLOWED,
    NoPreemptionReason.TOO_YOUNG,
    NoPreemptionReason.TOO_MANY_WAYS,
}
# Of gangs, and of what is rejected before it has a state.
_NO_STATES = {AppState.RESUMING, AppState.REJECTED}

_WORDS = """
adopted: changed
adopted: what was asked for
allocation: by rank
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
application: the scheduler's own
application: time is up
ask item: adopted
ask item: foreign
ask item: independent
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
claim: lost
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
independent: released
node rejected: negative
node rejected: no such partition
node rejected: twice
node rejected: unknown
promise: an earlier end
promise: in a report
promise: in an ask again
queue: gone
queue: made dynamically
queue: made from a template
queue: quota of a namespace
release: STOPPED_BY_RM (ask)
reservation: due later by a report
reservation: for a daemon
reservation: its ask is gone
reservation: made
reservation: served
preemption: planned anew
reservation: taken by a daemon or a preempting ask
reservation: taken by a higher rank
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
_GANG_WORDS = """
RM: a release is confirmed twice
RM: a release was swallowed
RM: registered anew
adopted: placeholder
adopted: real
allocated: placeholder
allocated: real
application rejected: larger than max queue allocation
application rejected: larger than the limit
application rejected: unsupported sort type fair
application: removed
ask: again
ask: again after a failure on the RM
ask: cancelled
ask: cancelled while a placeholder leaves
ask: changed
ask: changed while a placeholder leaves
configuration: taken
confirmed: preempted
confirmed: preempted in other words
confirmed: replaced
confirmed: replaced in other words
confirmed: timeout
confirmed: timeout in other words
gang: Completed in phase FORMED
gang: Completed in phase FORMING
gang: Completed in phase OVER
gang: Completed in phase USED
gang: Completed in phase WAITING
gang: Failed in phase OVER
gang: started as a whole
gang: starts again
gang: started with one
gang: waits for room as a whole
placeholder gone: free, by its application
placeholder gone: free, by node
placeholder gone: free, by the RM
placeholder gone: preempted, by the RM
placeholder gone: replaced, by its application
placeholder gone: replaced, by node
placeholder gone: replaced, by the RM
placeholder gone: timeout, by its application
placeholder gone: timeout, by node
placeholder gone: timeout, by the RM
preempted: a gang as a whole
real asks wait: the gang forms
reminder: preempted
reminder: replaced
reminder: timeout
replaced: above a lowered max
replaced: by a smaller one
replaced: not at once
replaced: on another node
replaced: on the same node
restart
restart: while one is preempted
restart: while one is replaced
restart: while one is timeout
state: Accepted to Completing
state: Accepted to Failing
state: Accepted to Resuming
state: Accepted to Running
state: Completing to Completed
state: Completing to Running
state: Failing to Failed
state: New to Accepted
state: Resuming to Accepted
state: Running to Completing
state: Running to Failing
stuck: no node for a real ask
time-out: of a gang
time-out: of what is not used
told: placeholder ask dropped
told: placeholder left over
told: placeholder mismatched
told: placeholder preempted
told: placeholder replaced
told: placeholder timed out
told: placeholder, for another node
told: real ask dropped
told: real preempted
"""
_CALLBACK_WORDS = """
RM: a question is never answered
RM: answers twice
RM: registered anew
RM: says no to PredicateRequested
RM: says no to PreemptionPredicateRequested
RM: says yes to PredicateRequested
RM: says yes to PreemptionPredicateRequested
allocation: agreed
allocation: in a placeholder's place
allocation: without a question
answer: nobody's
preemption
preemption: agreed
question: not to place
question: to place
question: to preempt
question: unanswered
replacement: agreed
restart: with open questions
restart: with refusals
state: RESERVED
state: SKIPPED
stream: comes
stream: goes
turns: alone in APPLICATION
turns: alone in NODE
turns: alone in ONE
turns: alone in TASK_GROUP
turns: behind what was told
"""
_EXTERNAL_WORDS = """
RM: a node leaves
RM: measures a node again
RM: registered anew
RM: speaks of a node that it did not bring
RM: takes a node
allocations
informer: an object cannot be read
informer: an object cannot be read at its start
informer: an old version comes late
informer: its manager goes away
informer: its manager is back
informer: says it twice
informer: stale
lent: forgets an offer
lent: offers
lent: revokes
lent: snatches an offer
licences: changes a pool
licences: takes a pool away
node: gone with its source
node: held back, a source is lost
node: its capacity is disputed
node: the RM's, with a source
node: with a source
offer: OFFERED
offer: RETURNED
offer: REVOKED
offer: given back, idle
offer: withdrawn, and gone
over-commit: not told in time
pool: used
rack: lifts a cap
rack: sets a cap
rest: looked for asks that would fit
restart: informers go on
restart: of everything
told to go: Preempted
vms: adds a host
vms: drains a host
vms: ends maintenance
vms: forgets an owner of VMs
vms: has an owner in another queue
vms: lifts a quota
vms: moves a VM
vms: rebuilds a host
vms: removes a host
vms: resizes a VM
vms: sets a quota
vms: starts a VM
vms: stops a VM
"""
# Of gangs, or of an operator who ends what has not begun: it is too seldom.
_NO_WAYS = {(AppState.NEW, AppState.FAILING)}


def _lines(words: str) -> list[str]:
    return [line for line in words.splitlines() if line]


def _releases() -> list[str]:
    found = [f"node: {action.name}" for action in NodeAction if action is not NodeAction.UNKNOWN]
    return found + [f"release: {kind.name}" for kind in Termination]


def _of_any() -> list[str]:
    found = _lines(_WORDS) + _releases()
    found += [f"command: {kind.__name__}" for kind in get_args(Command)]
    found += [f"node order: {policy.name}" for policy in SHIPPED]
    found += [f"preemption: {rule.name}" for rule in registry.SHIPPED]
    found += [f"reason: {code.value}" for code in ReasonCode if code not in _NO_REASONS]
    found += [f"no preemption: {no.value}" for no in NoPreemptionReason if no not in _NO_NOES]
    found += [
        f"state: {before} to {after}"
        for (before, _), after in APP_TRANSITIONS.items()
        if before is not after and not _NO_STATES & {before, after} and (before, after) not in _NO_WAYS
    ]
    return found


# What goes to the RM is not written a second time there.
_NOT_MIXED = ("turns: behind",)
_REQUIRED = {
    "": _of_any,
    "gangs": lambda: _lines(_GANG_WORDS) + _releases(),
    "callbacks": lambda: _lines(_CALLBACK_WORDS),
    "external": lambda: _lines(_EXTERNAL_WORDS),
    "gangs,callbacks,external": lambda: [
        *(line for line in _lines(_CALLBACK_WORDS) if not line.startswith(_NOT_MIXED)),
        *(line for line in _lines(_EXTERNAL_WORDS) if not line.startswith("rest: ")),
    ],
}


def missing(features: str, tally: Counter[str]) -> list[str]:
    """What did not come up, and must in a long run of lives with these features."""
    return [kind for kind in sorted(_REQUIRED[features]()) if not tally[kind]]


def table(tally: Counter[str]) -> str:
    """How often what came up, in two columns."""
    lines = [f"{count:>10,}  {kind}" for kind, count in sorted(tally.items())]
    half = (len(lines) + 1) // 2
    width = max((len(line) for line in lines[:half]), default=0)
    right = [*lines[half:], *[""] * (half - len(lines[half:]))]
    return "\n".join(f"{left:<{width}}  {other}".rstrip() for left, other in zip(lines[:half], right, strict=True))
