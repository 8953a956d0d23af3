"""Messages between a service and its reading process (``sandboxed_parser.py``, ``parser_main.py``).

parent   ParserLimits     once, first
parent   ParseRequest     a configuration
child    ParserReady      it has loaded its modules
child    ParseReply       on the text; the next text may come

A child that needs too much memory ends with OUT_OF_MEMORY: it may have none left for a message.
"""

from __future__ import annotations

from muster_runtime.message_channel import Message

from muster_queue_config.yaml_reader import ConfigProblem

# An exit code.
OUT_OF_MEMORY = 77


class ParserLimits(Message):
    """:param memory_bytes: beside that of the idle process."""

    cpu_s: float
    memory_bytes: int
    nice: int


class ParseRequest(Message):
    """A configuration to read, of at most so many bytes and queues."""

    text: str
    bytes_max: int
    queues_max: int


class ParserReady(Message):
    """The child can read."""


class ParseReply(Message):
    """:param compiled: as of ``compiled.encode``."""

    accepted: bool
    compiled: bytes
    problems: list[ConfigProblem]


ToParent = ParserReady | ParseReply
ToChild = ParserLimits | ParseRequest
