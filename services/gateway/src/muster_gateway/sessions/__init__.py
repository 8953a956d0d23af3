"""Session stores: the contract and its three implementations."""

from __future__ import annotations

from pathlib import Path

from muster_bus.clock import Clock
from muster_runtime.optional_packages import require
from muster_runtime.store_credentials import StoreFileUnusable

from muster_gateway.errors import InvalidStoreCredentials
from muster_gateway.sessions.contract import SessionStore
from muster_gateway.settings import GatewaySettings


def make_sessions(settings: GatewaySettings, clock: Clock) -> SessionStore:
    """Returns the store that ``settings.sessions_url`` names. The settings have checked its scheme.

    Raises InvalidStoreCredentials.
    """
    url = settings.sessions_url.get_secret_value()
    scheme, _, location = url.partition(":")
    if scheme == "memory":
        from muster_gateway.sessions.memory import MemorySessions

        return MemorySessions(clock)
    if scheme == "sqlite":
        from muster_gateway.sessions.sqlite import SqliteSessions

        return SqliteSessions(Path(location.removeprefix("//")), clock)
    require("redis", "gateway.sessions_url = redis://…")
    from muster_gateway.sessions.redis import RedisSessions

    try:
        return RedisSessions(
            settings.sessions_url,
            settings.sessions_prefix,
            username=settings.sessions_username,
            password=settings.sessions_secret(),
            tls=settings.sessions_tls(),
        )
    except StoreFileUnusable as error:
        raise InvalidStoreCredentials(str(error)) from error
