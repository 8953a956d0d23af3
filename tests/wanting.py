"""The behaviour of a test without its server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
import servers


@contextmanager
def server_wanted() -> Iterator[None]:
    """Around whatever may raise NoServer: the test is skipped, or fails where everything must be proven."""
    try:
        yield
    except servers.NoServer as error:
        give_up(str(error))


def give_up(want: str) -> NoReturn:
    """Ends a test that lacks something of this machine: skipped, or failed where everything must be proven."""
    if os.environ.get("MUSTER_REQUIRE_SERVERS") == "1":
        pytest.fail(f"MUSTER_REQUIRE_SERVERS=1, but {want}", pytrace=False)
    pytest.skip(want)
