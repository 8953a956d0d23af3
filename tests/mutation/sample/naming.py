"""What test_mutation.py makes mutants of: one survives its tests, and one function has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Named:
    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def empty(self) -> bool:
        return not self._name

    @staticmethod
    def larger(one: int, other: int) -> bool:
        return one > other

    def untested(self) -> None:
        self._name = ""


@contextmanager
def opened(names: list[str]) -> Iterator[None]:
    names.append("open")
    yield
