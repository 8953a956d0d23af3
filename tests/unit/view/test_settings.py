"""The view's settings: addresses; unknown names are refused."""

from __future__ import annotations

import pytest
from muster_view.settings import ViewSettings
from pydantic import ValidationError


@pytest.mark.parametrize("text", ["", "127.0.0.1:9081", "[::1]:0", "localhost:65535"])
def test_addresses(text: str) -> None:
    assert ViewSettings(http_address=text).http_address == text


@pytest.mark.parametrize("text", ["9081", "host:65536"])
def test_an_invalid_address_is_named_with_the_expectation(text: str) -> None:
    with pytest.raises(ValidationError, match=r"http_address .* expected host:port"):
        ViewSettings(http_address=text)


@pytest.mark.parametrize("url", ["", "http://event-publisher:9082", "https://[::1]:9082", "http://publisher/"])
def test_where_the_publisher_is(url: str) -> None:
    assert ViewSettings(publisher_url=url).publisher_url == url


@pytest.mark.parametrize("url", ["event-publisher:9082", "http://publisher:port", "http://[::1", "http://:9082", "/"])
def test_a_publisher_that_cannot_be_asked_is_refused_at_start_and_not_in_each_dump(url: str) -> None:
    with pytest.raises(ValidationError, match=r"publisher_url\n.*expected http://host:port"):
        ViewSettings(publisher_url=url)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        ViewSettings.model_validate({"htttp_address": ""})
