"""Each test of this folder runs in virtual time (``virtual/plugin.py``)."""

from __future__ import annotations

import pytest
from e2e.conftest import muster
from integration.conftest import quick, world
from integration.gateway_rig import Rig
from virtual.plugin import ports, pytest_asyncio_loop_factories, pytest_runtest_makereport

__all__ = ["muster", "ports", "pytest_asyncio_loop_factories", "pytest_runtest_makereport", "quick", "world"]


@pytest.fixture(params=["without", "with"])
def embedded(request: pytest.FixtureRequest, quick: Rig) -> Rig:
    """A rig whose registrations are answered with a number, or without one."""
    quick.scheduler.numbered_registrations = request.param == "with"
    return quick
