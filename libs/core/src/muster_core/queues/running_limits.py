"""Limits of running applications: the kinds of limits, and the events when a limit stops an application."""

from __future__ import annotations

from typing import NamedTuple

from muster_core.model.outcome import EventDetail
from muster_core.model.queue import Ledger, Tracker
from muster_core.model.reasons import ReasonCode


class RunningLimitDetails(NamedTuple):
    """The details of the two events: a limit stops an application, and the limit no longer stops the application."""

    cannot_run: EventDetail
    runnable: EventDetail


_BY_QUEUE = RunningLimitDetails(EventDetail.APP_CANNOTRUN_QUEUE, EventDetail.APP_RUNNABLE_QUEUE)
_BY_QUOTA = RunningLimitDetails(EventDetail.APP_CANNOTRUN_QUOTA, EventDetail.APP_RUNNABLE_QUOTA)
MAXIMA = {
    ReasonCode.QUEUE_MAX_APPLICATIONS: _BY_QUEUE,
    ReasonCode.USER_MAX_APPLICATIONS: _BY_QUOTA,
    ReasonCode.GROUP_MAX_APPLICATIONS: _BY_QUOTA,
}


def maximum_of(ledger: Ledger) -> ReasonCode:
    """The reason code of the ledger's limit of running applications."""
    if not isinstance(ledger, Tracker):
        return ReasonCode.QUEUE_MAX_APPLICATIONS
    return ReasonCode.GROUP_MAX_APPLICATIONS if ledger.group else ReasonCode.USER_MAX_APPLICATIONS
