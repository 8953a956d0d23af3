"""Everything that the publisher raises, in one tree.

* PublisherError
  x RequestRefused          a REST request that gets an error answer; carries the HTTP status
  x SearchTooLong           an event id was not found in the log within the allowed number of records
  x SinkError               a store for history, or the way to it
    - SinkUnavailable       not reachable now, or full, or held by another publisher; tried again with backoff
    - SinkUnfit             reachable, but not as this program needs it (a newer schema); a person must decide
"""

from __future__ import annotations


class PublisherError(Exception):
    """Root of the tree above."""


class RequestRefused(PublisherError):
    """A REST request that is answered with an error.

    :param status: HTTP status of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class SearchTooLong(PublisherError):
    """Looking for an event id in the log read more records than one request may cost.

    :param records: how many were read.
    """

    def __init__(self, rm_id: str, event_id: int, records: int) -> None:
        super().__init__(f"event {event_id} of {rm_id} was not found within {records} records of the log")
        self.rm_id, self.event_id, self.records = rm_id, event_id, records


class SinkError(PublisherError):
    """A store for history failed.

    :param sink: its name.
    """

    def __init__(self, sink: str, reason: str) -> None:
        super().__init__(f"{sink}: {reason}")
        self.sink, self.reason = sink, reason


class SinkUnavailable(SinkError):
    """Not reachable now. Safe to try again: a sink is idempotent."""


class SinkUnfit(SinkError):
    """Reachable, but not usable by this program. Trying again helps once a person has acted."""
