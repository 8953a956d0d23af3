"""Everything that the scheduler service raises.

* SchedulerServiceError
  - BadDefaultConfig    the queue configuration for RMs without one cannot be read; nothing starts
"""

from __future__ import annotations


class SchedulerServiceError(Exception):
    """Root of the tree above."""


class BadDefaultConfig(SchedulerServiceError):
    """The default queue configuration cannot be read or is not valid."""
