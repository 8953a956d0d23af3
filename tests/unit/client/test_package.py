"""What ``muster_client`` itself has: its names, each loaded at its first use."""

from __future__ import annotations

import muster_client
import pytest


def test_each_name_is_there_and_is_what_its_module_has() -> None:
    for name in muster_client.__all__:
        found = getattr(muster_client, name)
        assert found.__name__ == name
        assert found.__module__.startswith("muster_client.")


def test_another_name_is_none_of_it() -> None:
    with pytest.raises(AttributeError, match="RmClients"):
        muster_client.RmClients  # noqa: B018
