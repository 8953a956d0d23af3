"""The view's settings: addresses, and no unknown names."""

from __future__ import annotations

import pytest
from muster_scheduler.view.settings import ViewSettings
from pydantic import ValidationError


@pytest.mark.parametrize("text", ["", "127.0.0.1:9081", "[::1]:0", "localhost:65535"])
def test_addresses(text: str) -> None:
    assert ViewSettings(http_address=text).http_address == text


@pytest.mark.parametrize("text", ["9081", "host:65536"])
def test_what_is_no_address_is_named_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValidationError, match=r"http_address .* expected host:port"):
        ViewSettings(http_address=text)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        ViewSettings.model_validate({"htttp_address": ""})
