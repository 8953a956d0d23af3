"""HTTP/1.1 messages whose end is beyond doubt: h11's parser without what it allows for old clients.

A proxy in front may see another end of a request than this server does. What follows would then be a request of its own
here and a part of the body there (RFC 9112, section 11.2). So a message that two parsers may read differently gets 400,
and its connection ends:

- Content-Length together with Transfer-Encoding (section 6.1);
- a header that goes on in the next line (5.2);
- a line of the head or of a trailer that ends with a line feed alone (2.2);
- the head of a chunk with a carriage return inside, or with a size of more than 64 bits (7.1).

h11 itself refuses several lengths that differ, several hosts, other transfer codings and malformed chunks.
"""

from __future__ import annotations

import re
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer

# A size and extensions, of visible characters and blanks.
_CHUNK_HEAD = re.compile(rb"[0-9A-Fa-f]{1,16}(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_LONE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_BOTH_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})


class StrictConnection(h11.Connection):
    """A server's connection that refuses doubtful messages; see the module's docstring.

    :param head_bytes_max: of a request's line and headers.
    """

    def __init__(self, head_bytes_max: int) -> None:
        super().__init__(h11.SERVER, head_bytes_max)
        self._receive_buffer = _StrictBuffer()

    def next_event(self) -> Any:
        """Returns h11's next event. Raises h11.RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Request) and {name for name, _ in event.headers} >= _BOTH_LENGTHS:
            raise h11.RemoteProtocolError("Content-Length together with Transfer-Encoding")
        return event


class _StrictBuffer(ReceiveBuffer):
    """The bytes that are not parsed yet."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Returns the lines of a head or trailer; None: it is not complete."""
        if self._data[:2] == b"\r\n":
            self._extract(2)
            return []
        # Only what is new, and the end of what was there.
        start = self._multiple_lines_search
        end = self._data.find(b"\r\n\r\n", start)
        if _LONE_LINE_FEED.search(self._data, start, len(self._data) if end < 0 else end) is not None:
            raise h11.RemoteProtocolError("a line that ends with a line feed alone")
        if end < 0:
            self._multiple_lines_search = max(0, len(self._data) - 3)
            return None
        lines = self._extract(end + 4)[:-4].split(b"\r\n")
        if any(line.startswith((b" ", b"\t")) for line in lines):
            raise h11.RemoteProtocolError("a header that goes on in the next line")
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Returns the head of a chunk; None: it is not complete."""
        line = super().maybe_extract_next_line()
        if line is not None and _CHUNK_HEAD.fullmatch(line) is None:
            raise h11.RemoteProtocolError("a chunk's head that is not a size and extensions")
        return line
