"""Connections to a PostgreSQL server, for the sink and the reader."""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass

import asyncpg
from muster_runtime.store_credentials import (
    NO_PASSWORD,
    NO_TLS_FILES,
    ClientTls,
    Password,
    StoreFileUnusable,
    StoreNames,
    tls_problem,
)
from pydantic import SecretStr

from muster_event_publisher.errors import SinkUnavailable, SinkUnusable
from muster_event_publisher.settings import SslMode

# The modes that take a connection without TLS, or none with it.
_LAX: tuple[SslMode, ...] = ("disable", "allow", "prefer")
# asyncpg's text for a server without TLS.
_NO_TLS = "rejected SSL upgrade"


@dataclass(frozen=True, slots=True)
class PostgresAccess:
    """Credentials beside the DSN.

    :param sslmode: as in libpq; None: the DSN's, else PostgreSQL's default.
    :param settings: the prefix of these settings' names, for messages.
    """

    sslmode: SslMode | None = None
    password: Password = NO_PASSWORD
    tls: ClientTls = NO_TLS_FILES
    settings: str = "publisher.postgres_"

    @property
    def names(self) -> StoreNames:
        """The names of the settings."""
        return StoreNames.prefixed(
            self.settings, "PostgreSQL", account="dsn password", protocol="sslmode", tls="verify-full", address="dsn"
        )

    def check(self) -> None:
        """Raises ValueError for a file that cannot be used."""
        try:
            self.ssl()
            self.password.reveal()
        except StoreFileUnusable as error:
            raise ValueError(str(error)) from None

    def ssl(self) -> ssl.SSLContext | str | None:
        """Returns asyncpg's argument. Raises StoreFileUnusable."""
        mode = self.sslmode
        if mode is None or mode in _LAX:
            return mode
        # (As in libpq, a file of CAs makes "require" verify the certificate, but not its name.)
        verify = mode != "require" or self.tls.ca_file is not None
        return self.tls.context(self.names, verify=verify, check_name=mode == "verify-full")


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """Connects, and reports errors without any part of the DSN, which holds the password.

    :param sink: the store's name, for errors.
    :param timeout_s: for connecting and for each statement.
    """

    sink: str
    dsn: SecretStr
    timeout_s: float
    access: PostgresAccess = PostgresAccess()

    async def connect(self, who: str) -> asyncpg.Connection:
        """A new connection. Raises SinkUnusable for an invalid DSN, StoreFileUnusable (an OSError), and asyncpg's
        errors.

        :param who: shown in the server's list of connections.
        """
        password, tls = self.access.password.reveal(), self.access.ssl()
        try:
            return await asyncpg.connect(
                self.dsn.get_secret_value(),
                password=password,
                ssl=tls,
                timeout=self.timeout_s,
                command_timeout=self.timeout_s,
                server_settings={"application_name": who},
            )
        except ssl.SSLError:  # (one for a certificate is a ValueError, too)
            raise
        except ValueError:
            # The error may quote the DSN, and its cause too.
            raise SinkUnusable(
                self.sink, "postgres_dsn is not valid, expected postgresql://user:…@host/database"
            ) from None

    def error_for(self, error: BaseException) -> SinkUnavailable:
        """An error of asyncpg for a message: its class, and its text unless that quotes a secret; for a refusal the
        setting at fault.
        """
        text = str(error)
        quoted = any(secret in text for secret in self._secrets())
        detail = f"{type(error).__name__}: {'' if quoted else text}"
        reason = self._refusal(error, "" if quoted else text)
        return SinkUnavailable(self.sink, f"{reason} ({detail})" if reason else detail)

    def _secrets(self) -> list[str]:
        secret = self.dsn.get_secret_value()
        candidates = [secret, secret.split("@")[0].rpartition(":")[2] if "@" in secret else ""]
        with contextlib.suppress(StoreFileUnusable):
            candidates.append(self.access.password.reveal() or "")
        return [candidate for candidate in candidates if candidate]

    def _refusal(self, error: BaseException, text: str) -> str:
        names = self.access.names
        if isinstance(error, StoreFileUnusable):
            return ""  # its text says it all
        if isinstance(error, asyncpg.InvalidPasswordError):
            return f"{names.account}: PostgreSQL refuses the user or its password"
        if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
            if "certificate" in text:
                return f"{names.client_cert_file}: PostgreSQL wants a client certificate for this user"
            if "no encryption" in text:
                return f"{names.protocol}: PostgreSQL refuses this user without TLS; expected verify-full"
            return f"{names.account}: PostgreSQL has no access for this user, host and database"
        if isinstance(error, ConnectionError) and _NO_TLS in text:
            return f"{names.protocol}: PostgreSQL offers no TLS"
        return tls_problem(error, names) or ""
