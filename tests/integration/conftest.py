"""Rigs of a gateway on the backends that need no server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from integration.gateway_rig import Rig, rig
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings


@asynccontextmanager
async def _on(settings: LogSettings) -> AsyncIterator[Rig]:
    log = make_log(settings, SystemClock())
    await log.start()
    async with rig(log, settings.topics()) as it:
        yield it
    await log.close()


@pytest.fixture
async def quick() -> AsyncIterator[Rig]:
    """A rig in memory, for tests that do not depend on log or store."""
    async with _on(LogSettings(backend="memory", partitions=2)) as it:
        yield it


@pytest.fixture
def world(quick: Rig) -> Rig:
    """The default rig of a module."""
    return quick


@pytest.fixture(params=["memory", "sqlite"])
async def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig on each log of one process. On SQLite, a registration's answer has a number."""
    async with _on(LogSettings(backend=request.param, sqlite_path=tmp_path / "log.db", partitions=2)) as it:
        it.scheduler.numbered_registrations = request.param == "sqlite"
        yield it
