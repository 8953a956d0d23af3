"""All errors of this package.

* QueueConfigError
  - JudgeBusy     too many texts wait to be read
  - JudgeClosed   the service stops
"""

from __future__ import annotations


class QueueConfigError(Exception):
    """Root of the tree above."""


class ParserBusy(QueueConfigError):
    """Too many texts wait to be read."""


class ParserClosed(QueueConfigError):
    """The judge was closed."""
