"""Connections to a PostgreSQL server, for the sink and the reader."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg
from pydantic import SecretStr

from muster_event_publisher.errors import SinkUnavailable, SinkUnfit


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """Connects, and reports errors without any part of the DSN, which holds the password.

    :param sink: the store's name, for errors.
    :param timeout_s: for connecting and for each statement.
    """

    sink: str
    dsn: SecretStr
    timeout_s: float

    async def connect(self, who: str) -> asyncpg.Connection:
        """A new connection. Raises SinkUnfit for an invalid DSN, and asyncpg's errors.

        :param who: shown in the server's list of connections.
        """
        try:
            return await asyncpg.connect(
                self.dsn.get_secret_value(),
                timeout=self.timeout_s,
                command_timeout=self.timeout_s,
                server_settings={"application_name": who},
            )
        except ValueError:
            # The error may quote the DSN, and its cause too.
            raise SinkUnfit(
                self.sink, "postgres_dsn is not valid, expected postgresql://user:…@host/database"
            ) from None

    def away(self, error: BaseException) -> SinkUnavailable:
        """An error of asyncpg for a message: its class, and its text unless that quotes the DSN."""
        text, secret = str(error), self.dsn.get_secret_value()
        password = secret.split("@")[0].rpartition(":")[2] if "@" in secret else ""
        quoted = secret in text or (password and password in text)
        return SinkUnavailable(self.sink, f"{type(error).__name__}: {'' if quoted else text}")
