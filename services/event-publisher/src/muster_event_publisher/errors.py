"""Everything that the publisher raises, in one tree.

* PublisherError
  x RequestRefused          a REST request that gets an error answer; carries the HTTP status
  x CallRefused             a call of muster.v1.Events that ends with an error; carries the gRPC status
    - BadRequest            INVALID_ARGUMENT: names the field, its value and what was expected
    - NoEvents              NOT_FOUND: there are none of this RM
    - NotThereYet           OUT_OF_RANGE: the id is still to come
    - NotAsThingsAre        FAILED_PRECONDITION: another instance, or no tracking
    - TooManyWatchers       RESOURCE_EXHAUSTED: a limit of the service
    - TooManyReaders        RESOURCE_EXHAUSTED: as many as may be read old events already
    - WatchEnded            ABORTED: too far behind, or the ids begin anew; the caller may go on where it was
    - NotNow                UNAVAILABLE: safe to try again
  x OldEventsAway           log or history cannot say now what an old event was; safe to try again
    - TooManyOldReads       as many as may be read old events already
  x ViewSilent              the view does not say what the objects of events are like; safe to try again
  x SearchTooLong           an event id was not found in the log within the allowed number of records
  x DeriveError             what is derived from the events cannot go on
    - UsageMismatch         usage on the log has windows of another length; a person must decide
    - DeriveStalled         events are there and none is taken; the process ends and is started again
  x SinkError               a store for history, or the way to it
    - SinkUnavailable       not reachable now, or full, or held by another publisher; tried again with backoff
    - SinkUnfit             reachable, but not as this program needs it (a newer schema); a person must decide
    - SinkRefused           the store refuses what is to be written, and will again: to the dead letters at last
  x SinkSettingsWrong       settings of a store that cannot be used, or two stores of one kind; at the start
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

_SHOWN_CHARACTERS, _SHOWN_RMS = 60, 10


def shown(text: str) -> str:
    """A text that somebody sent, as it stands in an error: in ASCII, and not all of a long one."""
    return ascii(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!a}… ({len(text)} characters)"


def known_rms(rm_ids: Sequence[str], what: str = "events") -> str:
    """What an error about an RM ends with: which there are, or that none has any of ``what``."""
    if not rm_ids:
        return f"; no RM has {what} yet"
    more = f" and {len(rm_ids) - _SHOWN_RMS} more" if len(rm_ids) > _SHOWN_RMS else ""
    return f"; known RMs: {', '.join(map(shown, rm_ids[:_SHOWN_RMS]))}{more}"


class PublisherError(Exception):
    """Root of the tree above."""


class RequestRefused(PublisherError):
    """A REST request that is answered with an error.

    :param status: HTTP status of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class CallRefused(PublisherError):
    """A call of ``muster.v1.Events`` that ends with an error. ``str(error)`` is what the caller reads."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL


class BadRequest(CallRefused):
    """A field of the request is not as it must be."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NoEvents(CallRefused):
    """No events of this RM."""

    code = grpc.StatusCode.NOT_FOUND


class NotThereYet(CallRefused):
    """The id is still to come."""

    code = grpc.StatusCode.OUT_OF_RANGE


class NotAsThingsAre(CallRefused):
    """Another instance, or no tracking."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class TooManyWatchers(CallRefused):
    """A limit of the service."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class TooManyReaders(CallRefused):
    """Nothing is wrong with the request: later."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class WatchEnded(CallRefused):
    """The caller may go on where it was."""

    code = grpc.StatusCode.ABORTED


class NotNow(CallRefused):
    """Nothing is wrong with the request."""

    code = grpc.StatusCode.UNAVAILABLE


class OldEventsAway(PublisherError):
    """Events older than the ring cannot be read now. ``str(error)`` is what the asker reads: it names no hosts."""

    def __init__(self, why: str) -> None:
        super().__init__(f"older events cannot be read now: {why}")


class TooManyOldReads(OldEventsAway):
    """A limit of the service: as many as may be read old events already, and as many wait."""


class ViewSilent(PublisherError):
    """The view gives no answer, or none that can be read."""


class SearchTooLong(PublisherError):
    """Looking for an event id in the log read more records than one request may cost.

    :param records: how many were read.
    """

    def __init__(self, rm_id: str, event_id: int, records: int) -> None:
        super().__init__(f"event {event_id} of {rm_id} was not found within {records} records of the log")
        self.rm_id, self.event_id, self.records = rm_id, event_id, records


class DeriveError(PublisherError):
    """What is derived from the events cannot go on."""


class UsageMismatch(DeriveError):
    """Usage on the log was summed in windows of another length.

    :param window_s: the length that is set.
    :param found_s: the length on the log.
    :param topics: where it is.
    """

    def __init__(self, window_s: int, found_s: int, *topics: str) -> None:
        super().__init__(
            f"derive.window_s is {window_s}, but the usage on the log is in windows of {found_s} s: set {found_s}, or "
            f"delete the topics {' and '.join(topics)}"
        )
        self.window_s, self.found_s = window_s, found_s


class DeriveStalled(DeriveError):
    """Events are there, and for a while none was taken. The process ends, and its supervisor starts it again."""


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


class SinkRefused(SinkError):
    """The target took the call and refused its content."""


class SinkSettingsWrong(PublisherError):
    """Stores for history cannot be made as the settings say.

    :param problems: one sentence each, without secrets.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
