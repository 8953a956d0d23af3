"""Everything that the client raises, in one tree.

* ClientError
  x RegistrationFailed      the gateway did not answer the registration in time; try again
  x RegistrationRejected    the registration itself is wrong (configuration, rmID, rights); a person must act
  x StreamRefused           a stream ended with a status that trying again does not cure
  x Superseded              another connection of the same RM took the streams over; two must not fight for them
  x ReregistrationNeeded    the gateway does not know the RM (any more): register, then report everything
  x CallbackFailed          a callback raised; the client stops rather than lose what it was given
  x ClientClosed            used after close
  x BadAddress              an address that cannot be used; names field, value and what was expected
  x AdminFailed             a gateway did not answer an operator's call; the same call may be made again
  x AdminRefused            a gateway refused an operator's call; a person must act
  x TraceError              a trace file is not what it should be
  x ReplayFailed            a replay could not be carried to its end
"""

from __future__ import annotations

import grpc


class ClientError(Exception):
    """Root of the tree above."""


class RegistrationFailed(ClientError):
    """No answer to the registration within its time."""


class RegistrationRejected(ClientError):
    """The gateway refused the registration.

    :param code: the gRPC status.
    :param details: the gateway's words: field, value, what was expected.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"registration refused ({code.name}): {details}")
        self.code, self.details = code, details


class StreamRefused(ClientError):
    """A stream ended with a status that another try does not cure.

    :param stream: allocation, application, node or callback.
    """

    def __init__(self, stream: str, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{stream} stream refused ({code.name}): {details}")
        self.stream, self.code, self.details = stream, code, details


class Superseded(ClientError):
    """Another connection of the same RM, or its registration, took the streams over."""


class ReregistrationNeeded(ClientError):
    """The gateway does not know this RM, has stopped it, or has lost responses that it was not sent."""


class CallbackFailed(ClientError):
    """A callback raised; its exception is the cause. What it was given counts as not processed."""


class ClientClosed(ClientError):
    """Used after close, or before register."""


class BadAddress(ClientError):
    """An address that cannot be used."""


class AdminFailed(ClientError):
    """No answer to an operator's call.

    :param code: the gRPC status.
    :param details: the gateway's words, or gRPC's.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"no answer ({code.name}): {details}")
        self.code, self.details = code, details


class AdminRefused(ClientError):
    """An operator's call was refused.

    :param code: the gRPC status.
    :param details: the gateway's words: field, value, what was expected.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"refused ({code.name}): {details}")
        self.code, self.details = code, details


class TraceError(ClientError):
    """A trace file is not readable as a trace. The message names file, line, column and value."""


class ReplayFailed(ClientError):
    """The replay could not be carried to its end; the message says in which step and why."""
