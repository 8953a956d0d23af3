"""All errors of the publisher, in one tree.

* PublisherError
  x HttpError             a REST request that gets an error answer; carries the HTTP status
  x GrpcError             a call of muster.v1.Events that ends with an error; carries the gRPC status
    - BadRequest          INVALID_ARGUMENT: names the field, its value and what was expected
    - NoEvents            NOT_FOUND: there are none of this RM
    - EventNotYetWritten  OUT_OF_RANGE: the id is still to come
    - PreconditionFailed  FAILED_PRECONDITION: another instance, or no tracking
    - TooManyWatchers     RESOURCE_EXHAUSTED: a limit of the service
    - TooManyReaders      RESOURCE_EXHAUSTED: as many as may be read old events already
    - WatchEnded          ABORTED: too far behind, or the ids begin anew; the caller may go on where it was
    - Unavailable         UNAVAILABLE: safe to try again
  x OldEventsUnavailable  log or history cannot say now what an old event was; safe to try again
    - TooManyOldReads     as many as may be read old events already
  x ViewUnavailable       the view does not say what the objects of events are like; safe to try again
  x SearchLimitExceeded   an event id was not found in the log within the allowed number of records
  x DeriveError           what is derived from the events cannot go on
    - UsageMismatch       usage on the log has windows of another length; a person must decide
    - DeriveStalled       events are there and none is taken; the process ends and is started again
  x SinkError             a store for history, or the way to it
    - SinkUnavailable     not reachable now, or full, or held by another publisher; tried again with backoff
    - SinkUnusable        reachable, but not as this program needs it (a newer schema); a person must decide
    - SinkRejected        the store refuses what is to be written, and will again: to the dead letters at last
  x InvalidSinkSettings   settings of a store that cannot be used, or two stores of one kind; at the start
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

_QUOTED_CHARACTERS_MAX, _LISTED_RMS_MAX = 60, 10


def quote(text: str) -> str:
    """A caller's text, for an error message: in ASCII, a long one cut."""
    return (
        ascii(text)
        if len(text) <= _QUOTED_CHARACTERS_MAX
        else f"{text[:_QUOTED_CHARACTERS_MAX]!a}… ({len(text)} characters)"
    )


def rm_list_clause(rm_ids: Sequence[str], noun: str = "events") -> str:
    """The end of an error message about an RM: the known RMs, or that none has any ``noun``."""
    if not rm_ids:
        return f"; no RM has {noun} yet"
    more = f" and {len(rm_ids) - _LISTED_RMS_MAX} more" if len(rm_ids) > _LISTED_RMS_MAX else ""
    return f"; known RMs: {', '.join(map(quote, rm_ids[:_LISTED_RMS_MAX]))}{more}"


class PublisherError(Exception):
    """Root of the tree above."""


class HttpError(PublisherError):
    """An error answer to a REST request.

    :param status: HTTP status of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class GrpcError(PublisherError):
    """A call of ``muster.v1.Events`` that ends with an error. ``str(error)`` is what the caller reads."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL


class BadRequest(GrpcError):
    """A field of the request is not valid."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NoEvents(GrpcError):
    """The RM has no events."""

    code = grpc.StatusCode.NOT_FOUND


class EventNotYetWritten(GrpcError):
    """The event with this id does not exist yet."""

    code = grpc.StatusCode.OUT_OF_RANGE


class PreconditionFailed(GrpcError):
    """The RM has another instance now, or its events are not tracked."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class TooManyWatchers(GrpcError):
    """The limit of Watch calls is reached."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class TooManyReaders(GrpcError):
    """Too many calls read old events now; the same call may succeed later."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class WatchEnded(GrpcError):
    """The publisher ends a Watch; the caller may continue where it was."""

    code = grpc.StatusCode.ABORTED


class Unavailable(GrpcError):
    """The publisher cannot answer now; the same call may succeed later."""

    code = grpc.StatusCode.UNAVAILABLE


class OldEventsUnavailable(PublisherError):
    """Events older than the ring cannot be read now. The caller reads ``str(error)``, so it names no hosts."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"older events cannot be read now: {reason}")


class TooManyOldReads(OldEventsUnavailable):
    """The limits of answers that read old events, and of those that wait for it, are reached."""


class ViewUnavailable(PublisherError):
    """The view does not answer, or its answer cannot be read."""


class SearchLimitExceeded(PublisherError):
    """The search for an event id read more records of the log than one request may.

    :param records: how many were read.
    """

    def __init__(self, rm_id: str, event_id: int, records: int) -> None:
        super().__init__(f"event {event_id} of {rm_id} was not found within {records} records of the log")
        self.rm_id, self.event_id, self.records = rm_id, event_id, records


class DeriveError(PublisherError):
    """Deriving from the events cannot continue."""


class UsageMismatch(DeriveError):
    """The usage on the log is in windows of another length than the setting.

    :param window_s: the length in the settings.
    :param stored_s: the length on the log.
    :param topics: the topics with that usage.
    """

    def __init__(self, window_s: int, stored_s: int, *topics: str) -> None:
        super().__init__(
            f"derive.window_s is {window_s}, but the usage on the log is in windows of {stored_s} s: set {stored_s}, "
            f"or delete the topics {' and '.join(topics)}"
        )
        self.window_s, self.stored_s = window_s, stored_s


class DeriveStalled(DeriveError):
    """Events wait, but none was taken for a while. The process ends, and its supervisor starts it again."""


class SinkError(PublisherError):
    """A store for history failed.

    :param sink: its name.
    """

    def __init__(self, sink: str, reason: str) -> None:
        super().__init__(f"{sink}: {reason}")
        self.sink, self.reason = sink, reason


class SinkUnavailable(SinkError):
    """The store is not reachable now. A retry is safe, because a sink is idempotent."""


class SinkUnusable(SinkError):
    """The store is reachable, but this program cannot use it. A retry helps once a person has acted."""


class SinkRejected(SinkError):
    """The store refuses the content of a write."""


class InvalidSinkSettings(PublisherError):
    """The settings of a store for history are not valid.

    :param problems: one sentence each, without secrets.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
