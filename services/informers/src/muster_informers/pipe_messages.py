"""The messages between the scheduler and the process of its informers, over a pair of sockets.

The informers' process is a child of the scheduler's (``process.py``, ``child.py``) and has no log of its own: it
appends and reads through its parent (``muster_runtime.message_channel``, ``muster_bus.pipe.pipe_appends``). Secrets
come over the pipe, too, in :class:`StartInformers`, so they are in no command line and no environment.

=========  ===============  ==================================================================
from       message          says
=========  ===============  ==================================================================
scheduler  StartInformers   the first: what to run, in which life
scheduler  AppendResults    records are durable, or were refused
scheduler  LogReply         to a LogRequest
scheduler  HandlerRequest   what the RM says, to an event handler
scheduler  StopInformers    end in bounded time
informers  Append           records, many at once; their order is the log's
informers  LogRequest       open, read, close a reader
informers  HandlerReply     to a HandlerRequest
informers  InformersStatus  how far the informers are, and what does not work
informers  MetricSamples    metrics; once a second, hence a sign of life
informers  InformersEnded   they cannot begin, or had not synced in time
=========  ===============  ==================================================================

An end of file means that the other process is gone.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from muster_bus.pipe.messages import Append, AppendResults, EncodedError
from muster_runtime import message_channel

from muster_informers.native_handler import CallResult, HandlerCall


class StartInformers(message_channel.Message):
    """:param settings: ``ExternalSettings.in_clear``.
    :param topics: the fields of ``Topics``.
    :param path: the search path of modules, as in the parent.
    """

    settings: dict[str, object]
    topics: dict[str, object]
    partitions: tuple[int, ...]
    incarnation: str
    log_level: str
    log_format: str
    path: tuple[str, ...]


class ReadRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record with an offer of one of the informers' sources."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class LogReply(message_channel.Message):
    """:param number: the LogRequest's.
    :param offset: the position after the records read, or the requested offset.
    """

    number: int
    offset: int = 0
    records: tuple[ReadRecord, ...] = ()
    failure: EncodedError | None = None


class HandlerRequest(message_channel.Message):
    """:param name: the informer's.
    :param begins: its handler begins anew.
    """

    number: int
    name: str
    begins: bool
    calls: tuple[HandlerCall, ...]


class HandlerReply(message_channel.Message):
    """:param number: the HandlerRequest's."""

    number: int
    results: tuple[CallResult, ...]


class StopInformers(message_channel.Message):
    """The scheduler stops."""


class LogRequest(message_channel.Message):
    """:param reader: its number.
    :param offset: start of ``open`` and ``read``; None: the first offset.
    """

    number: int
    reader: int
    operation: Literal["open", "read", "first", "end", "close"]
    topic: str = ""
    partition: int = 0
    offset: int | None = None
    records_max: int = 0
    timeout_s: float = 0.0


class InformersStatus(message_channel.Message):
    """:param synced: the scheduler waits for no source any more.
    :param synced_once: the sources that have synced once.
    """

    synced: bool
    synced_once: tuple[str, ...]
    problems: tuple[str, ...]


class MetricFamily(msgspec.Struct, array_like=True, frozen=True):
    """A metric with its samples: (name, labels, value)."""

    name: str
    documentation: str
    type: str
    samples: tuple[tuple[str, dict[str, str], float], ...]


class MetricSamples(message_channel.Message):
    """The child's metrics."""

    families: tuple[MetricFamily, ...]


class InformersEnded(message_channel.Message):
    """:param late: by informer, why it had not synced.
    :param problems: otherwise: the problems of the settings.
    """

    late: dict[str, str]
    problems: tuple[str, ...] = ()


Message = (
    StartInformers
    | AppendResults
    | LogReply
    | HandlerRequest
    | StopInformers
    | Append
    | LogRequest
    | HandlerReply
    | InformersStatus
    | MetricSamples
    | InformersEnded
)
