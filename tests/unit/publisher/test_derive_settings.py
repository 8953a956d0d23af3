"""The name of a derive process in its group."""

from __future__ import annotations

import pytest
from muster_event_publisher.derive import settings as module
from muster_event_publisher.derive.settings import DeriveSettings
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("host", "member"), [("a1b2c3", "a1b2c3"), ("Derive_2.example", "Derive_2.example"), ("ä b", "--b")]
)
def test_an_empty_name_is_the_hosts(monkeypatch: pytest.MonkeyPatch, host: str, member: str) -> None:
    """Each container has another host name. Kafka accepts few characters."""
    monkeypatch.setattr(module.socket, "gethostname", lambda: host)
    assert DeriveSettings(member="").member == member
    assert DeriveSettings(member="7").member == "7"
    assert DeriveSettings().member == "0"


def test_a_name_that_kafka_refuses_is_an_error() -> None:
    with pytest.raises(ValidationError, match="expected 1 to 100 letters"):
        DeriveSettings(member="a b")
