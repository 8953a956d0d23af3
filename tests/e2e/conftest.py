"""All of Muster, for the tests of a module that has none of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from e2e.arena import Arena, opened
from e2e.gang_rig import Muster, muster_here
from e2e.spoilt import SECRET, VICTIM
from verdicts import shared_verdicts

__all__ = ["arena", "muster", "shared_verdicts"]


@pytest.fixture
async def muster(tmp_path: Path) -> AsyncIterator[Muster]:
    async with muster_here(tmp_path) as it:
        yield it


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Checks at the end that the view shows the victim as at the start, and that no secret was logged."""
    with opened(tmp_path_factory.mktemp("arena")) as it:
        before = it.run(it.view(VICTIM))
        yield it
        it.run(it.view_shows(VICTIM, before))
        assert SECRET not in it.logged.getvalue()
        assert "Traceback" not in it.logged.getvalue()
