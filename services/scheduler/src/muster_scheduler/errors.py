"""All errors of the scheduler service.

* SchedulerServiceError
  - BadDefaultConfig        the queue configuration for RMs without one cannot be read; the service does not start
  - UnknownUser             a user's groups cannot be found; the application is refused with the reason
  - BadLdapConfig           the secrets for LDAP are missing or wrong; a configuration that wants LDAP is refused
  - GroupSourceUnavailable  a source of groups did not answer; its users are refused for a while
"""

from __future__ import annotations


class SchedulerServiceError(Exception):
    """Root of the tree above."""


class BadDefaultConfig(SchedulerServiceError):
    """The default queue configuration cannot be read or is not valid."""


class UnknownUser(SchedulerServiceError):
    """A user's groups cannot be found.

    :ivar reason: for the RM; without a directory's address.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadLdapConfig(SchedulerServiceError):
    """The secrets for LDAP are missing or wrong. The text names the files, never their content."""


class GroupSourceUnavailable(SchedulerServiceError):
    """A source of groups did not answer in time."""
