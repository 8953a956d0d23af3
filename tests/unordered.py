"""Compares JSON without the order of lists."""

from __future__ import annotations

from typing import Any


def unordered(value: Any) -> Any:
    """Sort all lists, which have no order in REST: the fold puts a changed object behind the others."""
    if isinstance(value, dict):
        return {name: unordered(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted((unordered(each) for each in value), key=repr)
    return value
