"""Stores of others import the contract by name."""

from __future__ import annotations

import pytest
from muster_event_publisher.history import sink


def test_a_name_of_the_release_before_is_there_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"Progress is SinkProgress now; 0\.4\.0 has only that name"):
        assert sink.Progress is sink.SinkProgress
    with pytest.raises(AttributeError, match="has no attribute 'Progres'"):
        sink.Progres  # noqa: B018
