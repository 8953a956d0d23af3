"""All errors of replays, in one tree.

* ClientError                 (of muster_client)
  x TraceError                a trace file is invalid
  x ReplayFailed              a replay could not be completed, or a process did not start
"""

from __future__ import annotations

from muster_client.errors import ClientError


class TraceError(ClientError):
    """A trace file cannot be read as a trace. The message names file, line, column and value."""


class ReplayFailed(ClientError):
    """The replay could not be completed; the message names the step and the reason."""
