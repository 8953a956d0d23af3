"""Which queue each application is in, by the objects on ``si.state``.

Events say it once, when the application comes. Whoever asks for a queue's events after a restart of the publisher may
ask for those of an application whose coming is older than what is in memory: its object still tells.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from muster_event_publisher.codec import queue_of_application
from muster_event_publisher.filters import APPLICATIONS_KEPT

# The kind of the records, in their keys; the scheduler's name for it.
APPLICATION = "app"


class AppQueues:
    """The queues of all RMs' applications; of an RM at most ``applications_max``: those that are gone go first."""

    def __init__(self, applications_max: int = APPLICATIONS_KEPT) -> None:
        self._max = applications_max
        self._queues: defaultdict[str, OrderedDict[str, str]] = defaultdict(OrderedDict)
        self._gone: defaultdict[str, set[str]] = defaultdict(set)

    def queue_of(self, rm_id: str, application_id: str) -> str:
        """Where it is, or was last; "": not known."""
        queues = self._queues.get(rm_id)
        return queues.get(application_id, "") if queues is not None else ""

    def take(self, rm_id: str, application_id: str, value: bytes | None) -> None:
        """An application's object; None: it is gone. What it says of its queue stays true of its events."""
        queues, gone = self._queues[rm_id], self._gone[rm_id]
        if value is None:
            if application_id in queues:
                gone.add(application_id)
                queues.move_to_end(application_id, last=False)
            return
        # (An application stays in its queue: of its many records one is read.)
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
