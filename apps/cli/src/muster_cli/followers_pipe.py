"""The messages between ``muster up`` and the followers' process, besides those of the log
(``muster_bus.pipe.messages``).

=========  =========  ==================================================================
sender     message    content
=========  =========  ==================================================================
parent     Begin      the first message: what to run, and where to listen
parent     Stop       end in bounded time
followers  Told       the followers' state; sent repeatedly as a sign of life
followers  Refused    the settings cannot be used
followers  Failed     a follower could not start, or ended by itself
=========  =========  ==================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

from muster_bus.clock import Anchor
from muster_bus.pipe import messages as of_log
from muster_runtime.channel import Message
from pydantic import BaseModel, SecretStr

VIEW_SOCKET, PUBLISHER_SOCKET, EVENTS_SOCKET = "view", "publisher", "events"
# Greatest length of a Unix socket's path (man 7 unix), with the byte that ends it.
SOCKET_PATH_BYTES_MAX = 108


class Begin(Message):
    """:param settings: sections of ``MusterSettings``, unmasked.
    :param sockets: the directory of the three sockets.
    :param path: the search path of modules, as in the parent.
    :param clock: the parent's anchor, so that both have one recorded time.
    """

    settings: dict[str, object]
    sockets: str
    log_level: str
    log_format: str
    path: tuple[str, ...]
    clock: Anchor = Anchor()


class Stop(Message):
    """The parent stops."""


class Told(Message):
    """:param ready: everything is up and answers.
    :param problems: by service, one sentence each.
    """

    ready: bool
    problems: dict[str, tuple[str, ...]]


class Refused(Message):
    """The settings cannot be used. Nothing was started."""

    problems: tuple[str, ...]


class Failed(Message):
    """:param service: its name.
    :param why: for people.
    """

    service: str
    why: str


FromParent = Begin | Stop | of_log.FromLog
FromFollowers = Told | Refused | Failed | of_log.FromChild


def in_clear(value: object) -> object:
    """Returns settings as plain values, from which equal settings can be made. Secrets are unmasked: never log the
    result.
    """
    match value:
        case BaseModel():
            extra = value.__pydantic_extra__ or {}
            names = type(value).model_fields
            return {name: in_clear(getattr(value, name)) for name in names} | {
                name: in_clear(each) for name, each in extra.items()
            }
        case SecretStr():
            return value.get_secret_value()
        case Mapping():
            return {str(name): in_clear(each) for name, each in value.items()}
        case Path() | IPv4Address() | IPv6Address() | IPv4Network() | IPv6Network():
            return str(value)
        case str() | bytes():
            return value
        case Sequence() | Set():
            return [in_clear(each) for each in value]
    return value
