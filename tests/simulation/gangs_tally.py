"""What lives of gangs must have come to: lives that never reach a feature prove nothing of it."""

from __future__ import annotations

from collections import Counter

from muster_scheduler.core.commands import NodeAction, Termination

_WORDS = """
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
configuration
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
# With fewer lives the rare may be missing by chance.
SEEDS_FOR_ALL = 1_000


def required() -> list[str]:
    """What must have come up in a long run."""
    found = [line for line in _WORDS.splitlines() if line]
    found += [f"node: {action.name}" for action in NodeAction if action is not NodeAction.UNKNOWN]
    found += [f"release: {kind.name}" for kind in Termination]
    return sorted(found)


def missing(tally: Counter[str]) -> list[str]:
    """What did not come up."""
    return [kind for kind in required() if not tally[kind]]
