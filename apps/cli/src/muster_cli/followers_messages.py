"""The messages between ``muster up`` and the followers' process, besides those of the log
(``muster_bus.pipe.messages``), and the place of the sockets.

=========  ================  ==================================================================
sender     message           content
=========  ================  ==================================================================
parent     StartFollowers    the first message: what to run, and where to listen
parent     OpenFront         the gateway serves: accept HTTP connections at its socket
parent     CloseFront        accept no more, and end the open requests
parent     StopFollowers     end in bounded time
followers  FollowersStatus   the followers' state; sent repeatedly as a sign of life
followers  SettingsRejected  the settings cannot be used
followers  FollowerFailed    a follower could not start, or ended by itself
followers  Forwarded         a request for the gateway, which the front end has admitted
parent     Response          answers a Forwarded, by number
=========  ================  ==================================================================
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence, Set
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

import msgspec
from muster_bus.clock import Anchor
from muster_bus.pipe import messages as of_log
from muster_rest.system_health import Part, ServiceFacts
from muster_runtime.identity import Identity
from muster_runtime.message_channel import Message
from pydantic import BaseModel, SecretStr

VIEW_SOCKET, PUBLISHER_SOCKET, EVENTS_SOCKET = "view", "publisher", "events"
# Requests that show or change a process are about the deciding one. A level of the log is set in both.
OWN_PATHS = ("/debug/stack", "/debug/pprof", "/ws/v1/stack", "/ws/v1/loglevel")
LEVEL_PATH = "/ws/v1/loglevel/"
# Greatest length of a Unix socket's path (man 7 unix), with the byte that ends it.
SOCKET_PATH_BYTES_MAX = 108


class StartFollowers(Message):
    """:param settings: sections of ``MusterSettings``, unmasked.
    :param sockets: the directory of the three sockets.
    :param listener: the inherited socket of the HTTP front; -1: there is none.
    :param path: the search path of modules, as in the parent.
    :param clock: the parent's anchor, so that both have one recorded time.
    """

    settings: dict[str, object]
    sockets: str
    log_level: str
    log_format: str
    path: tuple[str, ...]
    clock: Anchor = Anchor()
    listener: int = -1


class OpenFront(Message):
    """:param gateway_id: whose front end it is."""

    gateway_id: str


class CloseFront(Message):
    """The gateway stops. A FollowersStatus whose front is closed follows when the front end has ended."""


class StopFollowers(Message):
    """The parent stops."""


class FrontState(StrEnum):
    """What a front end does."""

    CLOSED = "closed"
    """It was not opened yet, or it has ended."""
    OPEN = "open"
    """It accepts connections."""
    FAILED = "failed"
    """It cannot be opened now, and will be tried again."""


class FollowersStatus(Message):
    """:param ready: everything is up and answers.
    :param services: what each service says of itself, by part.
    :param log_notes: damaged parts of the log that the front end met.
    :param front: what the front end does.
    """

    ready: bool
    services: dict[Part, ServiceFacts]
    log_notes: tuple[str, ...] = ()
    front: FrontState = FrontState.CLOSED


class SettingsRejected(Message):
    """The settings cannot be used. Nothing was started."""

    problems: tuple[str, ...]


class FollowerFailed(Message):
    """:param service: its name.
    :param reason: for people.
    """

    service: str
    reason: str


class Forwarded(Message):
    """A request that the front end has admitted. Only the child of this pipe can send one, so the caller is true.

    :param number: identifies it on the pipe.
    :param caller: who asks.
    :param headers: without credentials.
    """

    number: int
    caller: ForwardedCaller
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class ForwardedCaller(msgspec.Struct, array_like=True, frozen=True):
    """A ``muster_runtime.caller.Caller`` of an HTTP request."""

    identity: Identity
    peer: str
    method: str
    credential: bytes


class Response(Message):
    """:param number: of the Forwarded.
    :param carried: a request is on its way to the scheduler, which writes the audit entry.
    """

    number: int
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    carried: bool = False


FromParent = StartFollowers | OpenFront | CloseFront | Response | StopFollowers | of_log.FromLog
FromFollowers = FollowersStatus | SettingsRejected | FollowerFailed | Forwarded | of_log.FromChild


def in_clear(value: object) -> object:
    """Returns settings as plain values, from which equal settings can be made. Secrets are unmasked: never log the
    result.
    """
    match value:
        case BaseModel():
            extra = value.__pydantic_extra__ or {}
            names = type(value).model_fields
            return {name: in_clear(getattr(value, name)) for name in names} | {
                name: in_clear(item) for name, item in extra.items()
            }
        case SecretStr():
            return value.get_secret_value()
        case Mapping():
            return {str(name): in_clear(item) for name, item in value.items()}
        case Path() | IPv4Address() | IPv6Address() | IPv4Network() | IPv6Network():
            return str(value)
        case str() | bytes():
            return value
        case Sequence() | Set():
            return [in_clear(item) for item in value]
    return value


def socket_directory(log_path: Path) -> Path:
    """Returns the directory of the followers' sockets for a log.

    It is always the same one, so that a new process finds the remains of a killed one; but another user's directory is
    not used. It is not beside the log: a path of a Unix socket is short (107 bytes), and some file systems have no
    sockets.
    """
    which = hashlib.sha256(os.fsencode(log_path.absolute())).hexdigest()[:12]
    name = f"muster-{os.getuid()}-{which}"
    longest = max(map(len, (VIEW_SOCKET, PUBLISHER_SOCKET, EVENTS_SOCKET)))
    for parent in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - 0700, ours
        directory = Path(parent) / name
        size = len(os.fsencode(directory)) + 1 + longest + 1
        if parent and size <= SOCKET_PATH_BYTES_MAX and os.access(parent, os.W_OK) and _is_ours_or_free(directory):
            return directory
    return Path(tempfile.mkdtemp(prefix="muster-"))


def _is_ours_or_free(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
