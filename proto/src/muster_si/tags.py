"""What tags of the scheduler interface say, for every service alike."""

from __future__ import annotations

from collections.abc import Mapping

from muster_si.constants import APP_TAG_CREATE_FORCE

# Enough for each date that a client can mean; a longer number is no time.
_SECONDS_DIGITS_MAX = 12
_TRUE = frozenset({"1", "t", "T", "true", "True", "TRUE"})


def tag_value(tags: Mapping[str, str], tag_name: str) -> str:
    """A tag's value by its name in any case; "" when there is none."""
    value = tags.get(tag_name)
    if value is not None:
        return value
    tag_name = tag_name.lower()
    # In order, since two names may differ in capitals only and a map has no order that all agree on.
    return next((tags[name] for name in sorted(tags) if name.lower() == tag_name), "")


def is_forced(tags: Mapping[str, str]) -> bool:
    """Whether an application must be taken in, since what it stands for runs already."""
    return tag_value(tags, APP_TAG_CREATE_FORCE) in _TRUE


def time_ns(text: str | None) -> int | None:
    """The time in a tag, which is whole seconds since the epoch; None: there is no valid time."""
    if text and text.isascii() and text.isdigit() and len(text) <= _SECONDS_DIGITS_MAX:
        return int(text) * 1_000_000_000
    return None
