"""All errors of this package.

* QueueConfigError
  - JudgeBusy     too many texts wait to be read
  - JudgeClosed   the service stops
"""

from __future__ import annotations


class QueueConfigError(Exception):
    """Root of the tree above."""


class JudgeBusy(QueueConfigError):
    """Too many texts wait to be read."""


class JudgeClosed(QueueConfigError):
    """The judge was closed."""
