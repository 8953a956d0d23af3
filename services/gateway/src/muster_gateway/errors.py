"""All errors of the gateway, in one tree. Each carries the gRPC status that its client sees.

Over HTTP, Unauthenticated and PermissionDenied are 401 and 403.

* GatewayError
  x RequestRefused             the client is at fault; nothing of the message reached the log
    - InvalidRequest           INVALID_ARGUMENT: names the field, its value and the expectation
    - RegistrationRefused      INVALID_ARGUMENT: the scheduler's problems, with line and column
    - NotRegistered            FAILED_PRECONDITION: no registration of this RM is in force
    - RmStopped                FAILED_PRECONDITION: it was shut down or away for too long; it must register again
    - NotFound                 NOT_FOUND: the subject of the request: an RM, a node, an ask ...
    - PreconditionFailed       FAILED_PRECONDITION: not in the present state; the text gives the reason
    - OverLimit                RESOURCE_EXHAUSTED: size, number of items, calls, streams or RMs
      + RateLimited            an identity's rate: the call may be repeated after some time
    - FirstMessageTimeout      DEADLINE_EXCEEDED: a stream did not name its RM in time
    - Unauthenticated          UNAUTHENTICATED: no credentials, or unknown ones
      + UnknownSigningKey      its token's key is unknown; newer keys may have it
    - PermissionDenied         PERMISSION_DENIED: the caller is known, but lacks a right
    - CrossSiteRequest         PERMISSION_DENIED: a browser may have sent it for another host's page
  x StreamEnded                the stream cannot continue, whatever the client sent
    - Superseded               ABORTED: a newer stream or a newer registration of the RM took its place
    - ResponsesLost            DATA_LOSS: retention deleted responses that were not sent; the RM must register again
    - RmShutDown               OK: the RM announced that it leaves
    - RightRevoked             PERMISSION_DENIED: the caller has lost the right that the stream uses
  x Unavailable                UNAVAILABLE: a retry with backoff is safe
    - GatewayStopping          this gateway is stopping; another one takes the RM
    - LogDown                  the log took no record; the client must send unanswered items again
    - SchedulerTimeout         no answer within the time allowed
    - SessionStoreDown         the session store does not answer
    - SessionStoreFull         a SessionStoreDown: the store's disk is full
    - ViewUnavailable          the view gives no answer: it is away, slow, or broke off
  x InvalidGatewaySettings     the gateway cannot start with these settings; a retry does not help
    - UnprotectedListener      others could reach a door without authentication
    - InvalidStoreCredentials  a file of the session store's credentials cannot be used
    - InvalidToken             a token cannot be read, is malformed, or is configured twice
    - InvalidPolicy            the policy file cannot be read, or a rule is wrong
    - InvalidTlsFiles          certificate, key or authorities cannot be read, or do not fit each other
    - InvalidJwks              the keys of JWT cannot be read
  x IllegalTransition          INTERNAL: an RM's life took a step that the table in rm_lifecycle.py does not have
"""

from __future__ import annotations

import grpc
from muster_bus.errors import LogFull
from muster_runtime.identity import Right, Role

from muster_gateway.stream_kind import StreamKind


class GatewayError(Exception):
    """Root of the tree above. ``str(error)`` is what the client reads."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL


class RequestRefused(GatewayError):
    """The client is at fault."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class InvalidRequest(RequestRefused):
    """A field of the message, or of the call's metadata, is invalid."""


class RegistrationRefused(RequestRefused):
    """The scheduler found problems in the registration."""


class NotRegistered(RequestRefused):
    """No registration of this RM is in force."""

    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, rm_id: str) -> None:
        super().__init__(f"rmID {quote(rm_id)} is not registered: call RegisterResourceManager first")
        self.rm_id = rm_id


class RmStopped(RequestRefused):
    """The RM is stopped; it may register again."""

    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, rm_id: str, reason: str) -> None:
        super().__init__(f"rmID {quote(rm_id)} is stopped ({reason}): register again")
        self.rm_id = rm_id


class NotFound(RequestRefused):
    """The subject of the request does not exist."""

    code = grpc.StatusCode.NOT_FOUND


class PreconditionFailed(RequestRefused):
    """The present state does not allow the request."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class OverLimit(RequestRefused):
    """The request exceeds a limit of this gateway."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class RateLimited(OverLimit):
    """A call is over its identity's rate.

    :ivar wait_s: after so long it may be repeated.
    """

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class FirstMessageTimeout(RequestRefused):
    """A stream did not say in time to which RM it belongs."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Unauthenticated(RequestRefused):
    """The request is not authenticated.

    :ivar reason: one word, for the metric.
    """

    code = grpc.StatusCode.UNAUTHENTICATED

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"not authenticated: {message} (docs/security.md)")
        self.reason = reason


class UnknownSigningKey(Unauthenticated):
    """The token names a key that is not known yet."""


class PermissionDenied(RequestRefused):
    """The caller lacks a right.

    :ivar name: the caller's.
    :ivar needed: the right.
    :ivar rm_id: the RM that the right is about; "": none.
    :ivar reason: one word, for the metric.
    """

    code = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self, name: str, role: Role, needed: Right, rm_id: str = "") -> None:
        self.name, self.needed, self.rm_id = name, needed, rm_id
        if needed in _DEEDS:
            self.reason = "rm"
            subject = f"rmID {quote(rm_id)}" if rm_id else "any resource manager"
            message = f'{name} may not {_DEEDS[needed]} {subject}: it lacks the right "{needed}" (docs/security.md)'
        else:
            self.reason = "role"
            message = f"this needs the role {needed.role}, and {name} has {role}"
        super().__init__(message)


_DEEDS = {
    Right.READ: "read",
    Right.ACT: "act as",
    Right.CONFIGURE: "configure",
    Right.OPERATE: "operate",
}


class CrossSiteRequest(RequestRefused):
    """A request that changes something, which a browser may have sent for another host's page."""

    code = grpc.StatusCode.PERMISSION_DENIED


class StreamEnded(GatewayError):
    """The stream cannot go on."""

    code = grpc.StatusCode.ABORTED


class Superseded(StreamEnded):
    """A newer stream or registration of the same RM replaced this stream."""

    @classmethod
    def by_registration(cls, rm_id: str) -> Superseded:
        return cls(f"superseded: rmID {quote(rm_id)} registered again, open new streams")

    @classmethod
    def by_stream(cls, rm_id: str, kind: StreamKind) -> Superseded:
        return cls(f"superseded: a newer {kind.name.lower()} stream of rmID {quote(rm_id)} was opened")


class ResponsesLost(StreamEnded):
    """Responses that were not sent are gone from the log."""

    code = grpc.StatusCode.DATA_LOSS

    def __init__(self, rm_id: str, message: str) -> None:
        super().__init__(f"rmID {quote(rm_id)}: {message}: register again and report the full state")


class RmShutDown(StreamEnded):
    """The RM shut down. This is no error."""

    code = grpc.StatusCode.OK


class RightRevoked(StreamEnded):
    """The caller has lost the right that the stream uses."""

    code = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has lost the right to this stream: the policy or the tokens have changed")


class Unavailable(GatewayError):
    """The request is valid; try again with backoff."""

    code = grpc.StatusCode.UNAVAILABLE


class GatewayStopping(Unavailable):
    """The gateway is going down."""

    def __init__(self) -> None:
        super().__init__("this gateway is stopping: connect again, to any gateway; no accepted request is lost")


class LogDown(Unavailable):
    """The log accepted no record."""


class SchedulerTimeout(Unavailable):
    """The scheduler did not answer in time."""


class SessionStoreDown(Unavailable):
    """The session store does not answer."""


class SessionStoreFull(SessionStoreDown):
    """The session store can be read, but its disk is full."""

    def __init__(self) -> None:
        super().__init__("the disk of the session store is full: try again when there is room")


class ViewUnavailable(Unavailable):
    """The view gives no answer."""


class InvalidGatewaySettings(GatewayError):
    """The gateway cannot start. The message names the setting, its value and the expectation."""


class UnprotectedListener(InvalidGatewaySettings):
    """Other machines could reach a door without authentication."""

    @classmethod
    def http(cls, address: str, open_role: str) -> UnprotectedListener:
        """The HTTP front."""
        return cls(
            f"gateway.http_address {address}: other machines can reach this address, and no token is configured. Use "
            "an address on the loopback (127.0.0.1:9080), or a token (gateway.tokens.NAME with a role, and token or "
            f'token_file), or gateway.http_open=true, which gives everybody the role "{open_role}" '
            "(gateway.http_open_role); see docs/security.md"
        )

    @classmethod
    def grpc(cls, address: str) -> UnprotectedListener:
        """The gRPC address."""
        return cls(
            f"gateway.grpc_address {address}: other machines can reach this address, and no token is configured. Use "
            "an address on the loopback (127.0.0.1:9090), or a token (gateway.tokens.NAME with a role, and token or "
            "token_file), or gateway.grpc_open=true, which lets everybody act as any resource manager and operate it; "
            "see docs/security.md"
        )


class InvalidStoreCredentials(InvalidGatewaySettings):
    """A file with the session store's password or certificates cannot be used. The text names setting and file."""


class InvalidToken(InvalidGatewaySettings):
    """A token of the configuration. The message never shows it."""


class InvalidPolicy(InvalidGatewaySettings):
    """The policy file. One line for each problem."""


class InvalidTlsFiles(InvalidGatewaySettings):
    """A certificate, a key or the clients' authorities."""


class InvalidJwks(InvalidGatewaySettings):
    """The keys that verify JSON Web Tokens."""


class IllegalTransition(GatewayError):
    """The table of an RM's states does not have this step."""


def append_failure_text(error: BaseException) -> str:
    """Returns why the log took no record, in a few words for the client."""
    return "its disk is full" if isinstance(error, LogFull) else type(error).__name__


def quote(value: str, limit: int = 60) -> str:
    """Returns a client's text in a form for messages: quoted, control characters escaped, cut to ``limit``
    characters.
    """
    return ascii(value) if len(value) <= limit else f"{value[:limit]!a}… ({len(value)} characters)"


def shortened(value: str, limit: int = 60) -> str:
    """Returns a client's text in a form for a field of a log entry: cut to ``limit`` characters. (The log writes
    control characters out.)
    """
    return value if len(value) <= limit else f"{value[:limit]}… ({len(value)} characters)"
