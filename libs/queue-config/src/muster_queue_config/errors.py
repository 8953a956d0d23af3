"""All errors of this package.

* QueueConfigError
  - ParserBusy     too many texts wait to be read
  - ParserClosed   the service stops
"""

from __future__ import annotations


class QueueConfigError(Exception):
    """Root of the tree above."""


class ParserBusy(QueueConfigError):
    """Too many texts wait to be read."""


class ParserClosed(QueueConfigError):
    """The judge was closed."""
