"""Chooses and sorts items by their columns.

queue=root.ml*      a column has a text, with * and ?
state!=Running      and has not
waiting>600         a number is larger (or >=, <, <=); ages are seconds, amounts are in the units of the interface
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from muster_cli import numbers
from muster_cli.errors import UsageError
from muster_cli.get.resource_kinds import Column, Item, Value

_CONDITION = re.compile(r"(?P<column>[^=!<>]+?)\s*(?P<comparison>!=|>=|<=|=|<|>)\s*(?P<operand>.*)", re.DOTALL)
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class RowFilter:
    """One condition on a column's value."""

    column: Column
    comparison: str
    operand: str

    def matches(self, item: Item) -> bool:
        """Tells whether an item fulfils it. What has no value fulfils ``!=`` only."""
        value = self.column.of(item)
        if self.comparison in _COMPARISONS:
            return isinstance(value, int | float) and _COMPARISONS[self.comparison](value, float(self.operand))
        fits = value is not None and fnmatchcase(str(value), self.operand)
        return fits is (self.comparison == "=")


def condition(text: str, columns: Sequence[Column]) -> RowFilter:
    """Reads a condition. Raises UsageError."""
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--where {text!r}: expected COLUMN=TEXT, COLUMN!=TEXT, COLUMN>NUMBER or COLUMN<NUMBER")
    row_filter = RowFilter(
        column_of(match["column"].strip(), columns, "--where"), match["comparison"], match["operand"].strip()
    )
    if row_filter.comparison in _COMPARISONS:
        numbers.COMPARED.number(f"--where {text!r}", row_filter.operand)
    return row_filter


def column_of(name: str, columns: Sequence[Column], flag: str) -> Column:
    """Finds a column by its name. Raises UsageError."""
    for column in columns:
        if column.name.lower().replace(" ", "-") == name.lower().replace(" ", "-"):
            return column
    raise UsageError(f"{flag}: unknown column {name!r}, expected one of {', '.join(column.name for column in columns)}")


def sort(items: list[Item], by: str, columns: Sequence[Column]) -> list[Item]:
    """Sorts by columns, ``a,-b``: first by a, then by b downwards. What has no value comes last. Raises UsageError."""
    for name in reversed([term.strip() for term in by.split(",") if term.strip()]):
        is_down = name.startswith("-")
        column = column_of(name.removeprefix("-"), columns, "--sort")
        with_value = [item for item in items if column.of(item) is not None]
        without = [item for item in items if column.of(item) is None]
        items = sorted(with_value, key=lambda item, column=column: _rank(column.of(item)), reverse=is_down) + without  # type: ignore[misc]
    return items


def _rank(value: Value) -> tuple[int, float, str]:
    return (0, value, "") if isinstance(value, int | float) else (1, 0.0, str(value))
