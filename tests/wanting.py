"""The behaviour of a test without its server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import servers


@contextmanager
def server_wanted() -> Iterator[None]:
    """Around whatever may raise NoServer: the test is skipped, or fails where everything must be proven."""
    try:
        yield
    except servers.NoServer as error:
        if os.environ.get("MUSTER_REQUIRE_SERVERS") == "1":
            pytest.fail(f"MUSTER_REQUIRE_SERVERS=1, but {error}", pytrace=False)
        pytest.skip(str(error))
