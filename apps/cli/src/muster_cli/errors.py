"""The exceptions of the command line, in one tree.

* CommandError              one clear line for the user, no traceback
  x UsageError              an invalid call: settings, a file, a port, a data directory; exit code 2
  x StartFailed             a service could not start; exit code 1, the cause is in the log
  x ServiceDied             a service ended by itself; exit code 1, so that a supervisor restarts it
"""

from __future__ import annotations


class CommandError(Exception):
    """Root of the tree above."""

    exit_code = 1


class UsageError(CommandError):
    """The call is invalid, and a retry will not help."""

    exit_code = 2


class StartFailed(CommandError):
    """A service could not start.

    :param service: its name.
    """

    def __init__(self, service: str, cause: BaseException) -> None:
        super().__init__(f"{service} could not start: {type(cause).__name__}: {cause}")
        self.service, self.cause = service, cause


class ServiceDied(CommandError):
    """A service ended by itself.

    :param service: its name.
    :param cause: the exception; None when it ended without one, which is an error too.
    """

    def __init__(self, service: str, cause: BaseException | None) -> None:
        reason = "it ended by itself" if cause is None else f"{type(cause).__name__}: {cause}"
        super().__init__(f"{service} died: {reason}")
        self.service, self.cause = service, cause
