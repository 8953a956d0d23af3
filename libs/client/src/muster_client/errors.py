"""All errors of the client, in one tree.

* ClientError
  x RegistrationFailed      the gateway did not answer the registration in time; try again
  x RegistrationRejected    the registration is wrong (configuration, rmID, rights); a person must act
  x StreamRefused           a stream ended with a status that a retry does not cure
  x Superseded              another connection of the same RM took the streams over; a retry would start a fight
  x ReregistrationNeeded    the gateway does not know the RM (any more): register, then report everything
  x CallbackFailed          a callback raised; the client stops rather than lose the response
  x ClientClosed            used after close
  x BadAddress              an unusable address; names field, value and expectation
  x AdminFailed             a gateway did not answer an operator's call; the call may be repeated
  x AdminRefused            a gateway refused an operator's call; a person must act
  x BadSettings             a setting has a value that it cannot have; names field, value and expectation
"""

from __future__ import annotations

import grpc


class ClientError(Exception):
    """Root of the tree above."""


class RegistrationFailed(ClientError):
    """The gateway did not answer the registration in time."""


class RegistrationRejected(ClientError):
    """The gateway refused the registration.

    :param code: the gRPC status.
    :param details: the gateway's text: field, value, expectation.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"registration refused ({code.name}): {details}")
        self.code, self.details = code, details


class StreamRefused(ClientError):
    """A stream ended with a status that a retry does not cure.

    :param stream: allocation, application, node or callback.
    """

    def __init__(self, stream: str, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{stream} stream refused ({code.name}): {details}")
        self.stream, self.code, self.details = stream, code, details


class Superseded(ClientError):
    """Another connection of the same RM, or its registration, took the streams over."""


class ReregistrationNeeded(ClientError):
    """The gateway does not know this RM, has stopped it, or has lost responses before it sent them."""


class CallbackFailed(ClientError):
    """A callback raised; its exception is the cause. The response counts as not processed."""


class ClientClosed(ClientError):
    """Used after close, or before register."""


class BadAddress(ClientError):
    """An address that cannot be used."""


class AdminFailed(ClientError):
    """The gateway did not answer an operator's call.

    :param code: the gRPC status.
    :param details: the gateway's text, or gRPC's.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"no answer ({code.name}): {details}")
        self.code, self.details = code, details


class AdminRefused(ClientError):
    """The gateway refused an operator's call.

    :param code: the gRPC status.
    :param details: the gateway's text: field, value, expectation.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"refused ({code.name}): {details}")
        self.code, self.details = code, details


class BadSettings(ClientError, ValueError):
    """A setting has a value that it cannot have."""
