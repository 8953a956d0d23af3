"""Who an aiokafka client is to its brokers, and what they say to a client that they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from typing import Any

from aiokafka import errors
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.protocol.metadata import MetadataRequest
from muster_runtime.store_credentials import (
    ClientTls,
    Password,
    StoreFileUnusable,
    StoreNames,
    no_tls_hint,
    tls_problem,
)

# A broker answers a handshake within milliseconds. It delays its refusal of a password (by 100 ms as delivered).
_ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class BrokerRefusal:
    """Why the brokers do not talk to this client.

    :param sentence: names the setting at fault; holds no secret.
    :param is_certain: False if a broker that is starting, or away, could look the same.
    """

    sentence: str
    is_certain: bool


class KafkaSecurity:
    """The security options of every aiokafka client with the same settings.

    The password's file is read for each client, and the certificates' files when they have changed. So new connections
    use new credentials without a restart.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        protocol: str,
        names: StoreNames,
        *,
        mechanism: str,
        username: str,
        password: Password,
        tls: ClientTls,
    ) -> None:
        self._servers, self._protocol, self._names = bootstrap_servers, protocol, names
        self._mechanism, self._username, self._password, self._tls = mechanism, username, password, tls
        self._context: ssl.SSLContext | None = None
        self._stamp: object = None

    def connection(self) -> dict[str, Any]:
        """Returns the connection options of an aiokafka client. Raises StoreFileUnusable."""
        options: dict[str, Any] = {"bootstrap_servers": self._servers, "security_protocol": self._protocol}
        if self._protocol.endswith("SSL"):
            options["ssl_context"] = self._current_context()
        if self._protocol.startswith("SASL"):
            options["sasl_mechanism"] = self._mechanism
            options["sasl_plain_username"] = self._username
            options["sasl_plain_password"] = self._password.reveal() or ""
        return options

    def _current_context(self) -> ssl.SSLContext:
        """(A context reads the system's CAs for some ten milliseconds: one serves all clients.)"""
        stamp = self._tls.stamp()
        if self._context is None or stamp != self._stamp:
            self._context, self._stamp = self._tls.context(self._names), stamp
        return self._context

    async def refusal(self) -> BrokerRefusal | None:
        """Connects to the brokers, and returns the first refusal; None if one accepts this client, or none answers.

        (aiokafka only logs the cause when it cannot connect.)
        """
        try:
            options = self.connection()
        except StoreFileUnusable as error:
            return BrokerRefusal(str(error), is_certain=True)
        refusal: BrokerRefusal | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ASK_S):
                for host, port, _ in collect_hosts(options.pop("bootstrap_servers")):
                    try:
                        await _greet(host, port, options)
                    except (errors.KafkaError, OSError, ValueError) as error:
                        refusal = refusal or self._explained(error)
                    else:
                        return None
        return refusal

    def _explained(self, error: BaseException) -> BrokerRefusal | None:
        names = self._names
        if isinstance(error, ssl.SSLError):  # (one for a certificate is a ValueError, too)
            return BrokerRefusal(tls_problem(error, names) or "", is_certain=True)
        if isinstance(error, errors.UnsupportedSaslMechanismError):
            return BrokerRefusal(
                f"{names.account}: the brokers do not offer the SASL mechanism {self._mechanism}; expected another one",
                is_certain=True,
            )
        if isinstance(error, (errors.SaslAuthenticationFailed, errors.AuthenticationFailedError, ValueError)):
            return BrokerRefusal(
                f"{names.account}: the brokers refuse user {self._username!r} or its password ({self._mechanism})",
                is_certain=True,
            )
        if isinstance(error, errors.IllegalSaslStateError):
            return BrokerRefusal(f"{names.protocol}: the brokers expect no SASL here", is_certain=True)
        # A broker cuts the connection of a client without TLS, and of one that should have authenticated.
        if isinstance(error, (errors.KafkaConnectionError, ConnectionResetError)):
            if self._protocol.endswith("SSL"):
                return BrokerRefusal(
                    f"{names.protocol}: the brokers close connections of {self._protocol}; expected another protocol, "
                    f"or {names.client_cert_file}",
                    is_certain=False,
                )
            return BrokerRefusal(no_tls_hint(names), is_certain=False)
        return None


async def _greet(host: str, port: int, options: dict[str, Any]) -> None:
    """Connects to a broker and asks it something. Raises KafkaError, OSError, ValueError."""
    connection = await create_conn(host, port, request_timeout_ms=round(_ASK_S * 1000), **options)
    try:
        # (A broker that wants SASL tells its versions to everybody.)
        await connection.send(MetadataRequest([]))
    finally:
        connection.close()
