"""The client's settings: defaults, and values that are refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from muster_client import ClientSettings
from muster_client.errors import BadSettings


def test_each_setting_has_a_reason() -> None:
    assert all(one.metadata["description"].endswith(".") for one in fields(ClientSettings))


def test_bounds_belong_to_their_range() -> None:
    settings = ClientSettings(
        linger_s=0, backoff_min_ms=1, register_timeout_s=1, backoff_seed=0, reregister="automatic"
    )
    assert settings.linger_s == 0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("register_timeout_s", 0, "register_timeout_s 0: expected a number above 0"),
        ("linger_s", -0.1, "linger_s -0.1: expected a number of at least 0"),
        ("linger_s", float("nan"), "linger_s nan: expected a number of at least 0"),
        ("linger_s", "1", "linger_s '1': expected a number of at least 0"),
        ("journal_messages", 0, "journal_messages 0: expected a whole number of at least 1"),
        ("journal_messages", 1.5, "journal_messages 1.5: expected a whole number of at least 1"),
        ("journal_messages", True, "journal_messages True: expected a whole number of at least 1"),
        ("max_message_bytes", 1023, "max_message_bytes 1023: expected a whole number of at least 1024"),
        ("backoff_seed", "x", "backoff_seed 'x': expected a whole number or None"),
        ("reregister", "never", "reregister 'never': expected callback or automatic"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any, said: str) -> None:
    with pytest.raises(BadSettings) as wrong:
        ClientSettings(**{name: value})
    assert str(wrong.value) == said


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown"):
        ClientSettings(unknown=1)  # type: ignore[call-arg]
