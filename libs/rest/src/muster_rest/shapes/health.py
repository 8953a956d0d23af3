"""The state of the whole Muster, by part."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from muster_rest.shapes.base import MusterShape, Name, Time


class Grade(StrEnum):
    """How well a part works, the worst one last."""

    OK = "ok"
    """It works, and needs nobody."""
    DEGRADED = "degraded"
    """It works in part, or will soon stop, or is just being replaced."""
    FAILED = "failed"
    """It does not work."""

    @property
    def rank(self) -> int:
        """Order of the grade; a higher rank is worse."""
        return _RANK[self]


_RANK = {grade: rank for rank, grade in enumerate(Grade)}

Clause = Annotated[str, Meta(pattern="^[^\\n]*[^\\n.]$", description="One clause, without a full stop.")]


class PartHealthDao(MusterShape):
    """One part of Muster.

    The sentence says what is the matter, or that nothing is; the others are what else is, the worst first. The remedy
    is a command or an action; it is empty where nothing needs to be done.
    """

    part: Name
    grade: Grade
    since: Time
    sentence: Clause
    remedy: str
    others: list[Clause]


class SystemHealthDao(MusterShape):
    """The state of the whole. Its grade, since, sentence and remedy are those of its worst part.

    A caller that may read nothing gets the grade, and no parts. ``checked`` is when the state was computed.
    """

    grade: Grade
    part: str
    since: Time
    sentence: str
    remedy: str
    checked: Time
    parts: list[PartHealthDao]
