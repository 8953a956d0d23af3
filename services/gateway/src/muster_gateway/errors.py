"""Everything that the gateway raises, in one tree. Each carries the gRPC status that its client sees.

NotIdentified and RoleTooLow belong to HTTP, where they are 401 and 403.

* GatewayError
  x RequestRefused           the client is at fault; nothing of the message reached the log
    - InvalidRequest         INVALID_ARGUMENT: names the field, its value and what was expected
    - RegistrationRefused    INVALID_ARGUMENT: the scheduler's problems, with line and column
    - NotRegistered          FAILED_PRECONDITION: no registration of this RM is in force
    - RmStopped              FAILED_PRECONDITION: it was shut down or away for too long; it must register again
    - NotThere               NOT_FOUND: what the request is about: an RM, a node, an ask ...
    - NotPossible            FAILED_PRECONDITION: not as things are; the text says why
    - OverLimit              RESOURCE_EXHAUSTED: size, number of items or number of streams
    - NotIdentified          UNAUTHENTICATED: no token, or nobody's
    - RoleTooLow             PERMISSION_DENIED: known, but not allowed to do this
  x StreamEnded              the stream cannot go on, whatever the client sent
    - Superseded             ABORTED: a newer stream or a newer registration of the RM took its place
    - ResponsesLost          DATA_LOSS: retention deleted responses that were not sent; the RM must register again
    - RmShutDown             OK: the RM said that it leaves
  x NotNow                   UNAVAILABLE: safe to try again with backoff
    - GatewayStopping        this gateway is going down; another one takes the RM
    - LogDown                the log took no record; what was not answered must be sent again
    - SchedulerSilent        no answer within the time allowed
    - SessionsDown           the session store does not answer
    - ViewSilent             the view gives no answer: it is away, slow, or broke off
  x SettingsWrong            it cannot start with these settings; trying again does not help
    - OpenToAll              others could reach the HTTP front, and nobody would be asked who they are
    - TokenUnusable          a token cannot be read, is none, or is somebody else's too
  x IllegalTransition        INTERNAL: an RM's life took a step that the table in rm_life.py does not have
"""

from __future__ import annotations

import grpc
from muster_service.identity import Role


class GatewayError(Exception):
    """Root of the tree above. ``str(error)`` is what the client reads."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL


class RequestRefused(GatewayError):
    """The client is at fault."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class InvalidRequest(RequestRefused):
    """A field of the message, or of the call's metadata, is not as it must be."""


class RegistrationRefused(RequestRefused):
    """The scheduler found problems in the registration."""


class NotRegistered(RequestRefused):
    """No registration of this RM is in force."""

    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, rm_id: str) -> None:
        super().__init__(f"rmID {shown(rm_id)} is not registered: call RegisterResourceManager first")
        self.rm_id = rm_id


class RmStopped(RequestRefused):
    """The RM's life ended; it starts again with a registration."""

    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, rm_id: str, why: str) -> None:
        super().__init__(f"rmID {shown(rm_id)} is stopped ({why}): register again")
        self.rm_id = rm_id


class NotThere(RequestRefused):
    """What the request is about."""

    code = grpc.StatusCode.NOT_FOUND


class NotPossible(RequestRefused):
    """Not as things are."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class OverLimit(RequestRefused):
    """More than this gateway takes at once."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class NotIdentified(RequestRefused):
    """Nobody knows who asks.

    :ivar reason: in one word, for the metric.
    """

    code = grpc.StatusCode.UNAUTHENTICATED

    def __init__(self, reason: str, story: str) -> None:
        super().__init__(f"who asks is not known: {story} (docs/security.md)")
        self.reason = reason


class RoleTooLow(RequestRefused):
    """Who asks is known, but may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self, name: str, role: Role, needed: Role) -> None:
        super().__init__(f"this needs the role {needed}, and {name} has {role}")
        self.name, self.needed = name, needed


class StreamEnded(GatewayError):
    """The stream cannot go on."""

    code = grpc.StatusCode.ABORTED


class Superseded(StreamEnded):
    """A newer stream or registration of the same RM took this stream's place."""


class ResponsesLost(StreamEnded):
    """Responses that were not sent are gone from the log."""

    code = grpc.StatusCode.DATA_LOSS

    def __init__(self, rm_id: str, story: str) -> None:
        super().__init__(f"rmID {shown(rm_id)}: {story}: register again and report the full state")


class RmShutDown(StreamEnded):
    """The RM said that it leaves: not an error."""

    code = grpc.StatusCode.OK


class NotNow(GatewayError):
    """Nothing is wrong with the request; try again with backoff."""

    code = grpc.StatusCode.UNAVAILABLE


class GatewayStopping(NotNow):
    """This gateway is going down."""

    def __init__(self) -> None:
        super().__init__("this gateway is stopping: connect again, to any gateway; nothing that was taken is lost")


class LogDown(NotNow):
    """The log took no record."""


class SchedulerSilent(NotNow):
    """The scheduler did not answer in time."""


class SessionsDown(NotNow):
    """The session store does not answer."""


class ViewSilent(NotNow):
    """The view gives no answer."""


class SettingsWrong(GatewayError):
    """The gateway cannot start like this; the message names the setting, its value and what was expected."""


class OpenToAll(SettingsWrong):
    """Others could reach the HTTP front, and nobody would be asked who they are."""

    def __init__(self, address: str, open_role: str) -> None:
        super().__init__(
            f"gateway.http_address {address}: others reach it, and no token is configured to tell them apart. "
            "Ways out: an address on the loopback (127.0.0.1:9080); a token (gateway.http_tokens.NAME: role, and token "
            f'or token_file); or gateway.http_open=true, which gives everybody the role "{open_role}" '
            "(gateway.http_open_role); see docs/security.md"
        )


class TokenUnusable(SettingsWrong):
    """A token of the configuration. The message never shows it."""


class IllegalTransition(GatewayError):
    """A step that the table of an RM's life does not have."""


def shown(value: str, limit: int = 60) -> str:
    """A client's text as it may stand in a message: quoted, control characters escaped, cut to ``limit`` characters."""
    return ascii(value) if len(value) <= limit else f"{value[:limit]!a}… ({len(value)} characters)"
