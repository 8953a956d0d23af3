"""The queue of each application, from the application objects on ``si.state``.

An event names an application's queue only once, when the application is added. After a restart of the publisher, that
event may be older than the ring. The application's object still names the queue, so a caller can filter by it.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from muster_event_publisher.event_decoding import queue_of_application
from muster_event_publisher.filters import APPLICATIONS_MAX

# The kind of an application's record on si.state, as the scheduler writes it into the key.
APPLICATION = "app"


class AppQueues:
    """The queues of all RMs' applications.

    :param applications_max: how many are kept of each RM; ended applications are dropped first.
    """

    def __init__(self, applications_max: int = APPLICATIONS_MAX) -> None:
        self._max = applications_max
        self._queues: defaultdict[str, OrderedDict[str, str]] = defaultdict(OrderedDict)
        self._ended: defaultdict[str, set[str]] = defaultdict(set)

    def queue_of(self, rm_id: str, application_id: str) -> str:
        """The application's queue, or its last one; "": not known."""
        queues = self._queues.get(rm_id)
        return queues.get(application_id, "") if queues is not None else ""

    def fold(self, rm_id: str, application_id: str, value: bytes | None) -> None:
        """Takes an application's object; None: it ended. Its queue is kept, because its older events refer to it."""
        queues, gone = self._queues[rm_id], self._ended[rm_id]
        if value is None:
            if application_id in queues:
                gone.add(application_id)
                queues.move_to_end(application_id, last=False)
            return
        # (An application never changes its queue, so one of its records is enough.)
        if application_id in queues and application_id not in gone:
            return
        queue = queue_of_application(value)
        if not queue:
            return
        gone.discard(application_id)
        queues[application_id] = queue
        queues.move_to_end(application_id)
        if len(queues) > self._max:
            gone.discard(queues.popitem(last=False)[0])
