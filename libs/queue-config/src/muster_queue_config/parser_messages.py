"""Messages between a service and its reading process (``sandboxed_parser.py``, ``parser_main.py``).

parent   Limits           once, first
parent   Text             a configuration
child    Ready            it has loaded its modules
child    Verdict          on the text; the next text may come

A child that needs too much memory ends with OUT_OF_MEMORY: it may have none left for a message.
"""

from __future__ import annotations

from muster_runtime.message_channel import Message

from muster_queue_config.yaml_reader import Problem

# An exit code.
OUT_OF_MEMORY = 77


class Limits(Message):
    """:param memory_bytes: beside that of the idle process."""

    cpu_s: float
    memory_bytes: int
    nice: int


class Text(Message):
    """A configuration to read, of at most so many bytes and queues."""

    text: str
    bytes_max: int
    queues_max: int


class Ready(Message):
    """The child can read."""


class Verdict(Message):
    """:param compiled: as of ``compiled.encode``."""

    accepted: bool
    compiled: bytes
    problems: list[Problem]


ToParent = Ready | Verdict
ToChild = Limits | Text
