"""The placeholders of one task group of a gang, in counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster_core.model.free_placeholders import FreePlaceholders

if TYPE_CHECKING:
    from muster_core.model.resources import Shape


class TaskGroup:
    """The placeholders of one name. At all times, ``asked = pending + held + replaced + timed_out + lost``.

    :ivar shape: the shape of its first placeholder.
    :ivar asked: the number of all placeholders that there were.
    :ivar pending: asked for, and not allocated. ``held``: allocated and on the books.
    :ivar free: the held placeholders that are not released, oldest first.
    :ivar lost: preempted, taken back by the RM, or gone with their node.
    """

    __slots__ = ("asked", "free", "held", "lost", "name", "pending", "replaced", "shape", "timed_out")

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape
        self.asked = self.pending = self.held = 0
        self.replaced = self.timed_out = self.lost = 0
        self.free: FreePlaceholders[Any] = FreePlaceholders()

    def __repr__(self) -> str:
        return f"TaskGroup({self.name})"
