"""Fixtures of several modules."""

from __future__ import annotations

from scenario.operated import world
from verdicts import shared_verdicts

__all__ = ["shared_verdicts", "world"]
