"""Fixtures of several modules."""

from __future__ import annotations

from scenario.operated import world

__all__ = ["world"]
