"""What the scheduler and the process of its informers tell one another, over a pair of sockets.

The informers' process is a child of the scheduler's (``process.py``, ``child.py``), and has no log of its own: what it
appends and reads goes through its parent (``muster_service.channel``, ``muster_bus.pipe.writing``). Secrets come this
way too, in :class:`Begin`: they are in no command line and in no environment.

=========  =========  ==================================================================
from       message    says
=========  =========  ==================================================================
scheduler  Begin      the first: what to run, in which life
scheduler  Settled    records are durable, or were refused
scheduler  Answer     to an Ask
scheduler  Stop       end in bounded time
informers  Append     records, many at once; their order is the log's
informers  Ask        open, read, close a reader
informers  Told       how far the informers are, and what does not work
informers  Sampled    metrics; once a second, hence a sign of life
informers  Ended      they cannot begin, or had not synced in time
=========  =========  ==================================================================

An end of file says that the other one is gone.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from muster_bus.pipe.messages import Append, Failure, Settled
from muster_service import channel


class Begin(channel.Message):
    """:param settings: ``ExternalSettings.in_clear``; :param topics: the fields of ``Topics``.
    :param path: where modules are looked for, as in the parent.
    """

    settings: dict[str, object]
    topics: dict[str, object]
    partitions: tuple[int, ...]
    life: str
    log_level: str
    log_format: str
    path: tuple[str, ...]


class ReadRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record with an offer of one of the informers' sources."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Answer(channel.Message):
    """:param number: the Ask's; :param offset: the position behind what was read, or what was asked for."""

    number: int
    offset: int = 0
    records: tuple[ReadRecord, ...] = ()
    failure: Failure | None = None


class Stop(channel.Message):
    """The scheduler stops."""


class Ask(channel.Message):
    """:param reader: which one; :param offset: of ``open`` and ``read``: from where; None: from the first."""

    number: int
    reader: int
    what: Literal["open", "read", "first", "end", "close"]
    topic: str = ""
    partition: int = 0
    offset: int | None = None
    records_max: int = 0
    timeout_s: float = 0.0


class Told(channel.Message):
    """:param synced: nobody is waited for any longer; :param known: the sources that have synced once."""

    synced: bool
    known: tuple[str, ...]
    problems: tuple[str, ...]


class Family(msgspec.Struct, array_like=True, frozen=True):
    """A metric with its samples: (name, labels, value)."""

    name: str
    documentation: str
    type: str
    samples: tuple[tuple[str, dict[str, str], float], ...]


class Sampled(channel.Message):
    families: tuple[Family, ...]


class Ended(channel.Message):
    """:param late: by informer, why it had not synced; :param problems: else: what is wrong with the settings."""

    late: dict[str, str]
    problems: tuple[str, ...] = ()


Message = Begin | Settled | Answer | Stop | Append | Ask | Told | Sampled | Ended
