"""The numbers of the command line: each option's or operand's range, and its message.

Every number of every command has one of these types, so that nothing else checks it, and a message is
``--nodes: must be a whole number from 1 to 10,000, got '0'``. (Values inside of a text, such as those of ``generate:``,
have theirs where the text is read.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from muster_cli.errors import UsageError

_WHOLE = re.compile(r"[-+]?[0-9]{1,30}\Z")
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\Z")
_QUOTED_MAX = 40


@dataclass(frozen=True, slots=True)
class Range:
    """Reads the number of an option.

    :param above: the least value itself is not allowed.
    :param operand: its name, if it is no option.
    :param unit: the expectation in other words, where the text is more than the number.
    """

    least: float
    most: float
    whole: bool = False
    above: bool = False
    operand: str = ""
    unit: str = ""

    def __call__(self, _: Any, tokens: Sequence[Any]) -> int | float:
        """Returns the number of an option. Raises UsageError. (The signature of a converter.)"""
        token = tokens[-1]
        return self.number(token.keyword or self.operand, token.value)

    def number(self, name: str, text: str) -> int | float:
        """Returns the number in a text. Raises UsageError, which begins with the name."""
        return self.within(name, self._read(text), text)

    def within(self, name: str, number: float | None, text: str) -> int | float:
        """Returns the number that was read from a text. Raises UsageError; None: the text is none."""
        if number is None or not (self.least < number if self.above else self.least <= number) or number > self.most:
            raise UsageError(f"{name}: must be {self.expected}, got {_quote(text)}")
        return number

    @property
    def expected(self) -> str:
        """The expectation, for messages."""
        return self.unit or str(self)

    def _read(self, text: str) -> int | float | None:
        if self.whole:
            return int(text) if _WHOLE.match(text) else None
        return float(text) if _DECIMAL.match(text) else None

    def __str__(self) -> str:
        least, most = (f"{int(bound):,}" if bound == int(bound) else f"{bound:g}" for bound in (self.least, self.most))
        if self.whole:
            return f"a whole number from {least} to {most}"
        return f"a number above {least}, at most {most}" if self.above else f"a number from {least} to {most}"


def _quote(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_MAX else f"{text[: _QUOTED_MAX - 1]}…")


def _number(range_: Range) -> Parameter:
    """A negative number is a value like another, so that the message can be about it."""
    return Parameter(converter=range_, allow_leading_hyphen=True)


_INT64_MAX = (1 << 63) - 1
_DAY_S = 86_400
_CENTURY_S = 100 * 365 * _DAY_S

# How long to wait for an answer.
TimeoutS = Annotated[float, _number(Range(0, 30 * _DAY_S, above=True))]
# Between two readings of what goes on.
IntervalS = Annotated[float, _number(Range(0.1, _DAY_S))]
# Items of one message: those of a gateway's limit (gateway.admission.max_items).
MessageItems = Annotated[int, _number(Range(1, 50_000, whole=True))]
Rate = Annotated[float, _number(Range(0, 1_000_000))]
Seed = Annotated[int, _number(Range(0, _INT64_MAX, whole=True))]
# Rows, nodes and the like to show: more fit on no screen and in no pipe.
RowLimit = Annotated[int, _number(Range(1, 1_000_000, whole=True))]
RowsOrAll = Annotated[int | None, _number(Range(0, _INT64_MAX, whole=True))]
EventId = Annotated[int | None, _number(Range(0, _INT64_MAX, whole=True))]
Events = Annotated[int, _number(Range(1, 1_000_000_000, whole=True))]
NewestEvents = Annotated[int | None, _number(Range(0, 1_000_000_000, whole=True))]
NewestEntries = Annotated[int | None, _number(Range(1, 1_000_000_000, whole=True))]
# Which of several with one name; 0: the last one.
Ordinal = Annotated[int, _number(Range(0, 1_000_000_000, whole=True))]
# As of the setting log.partitions.
Partitions = Annotated[int, _number(Range(1, 4_096, whole=True, operand="PARTITIONS"))]

# Within texts: how long ago, how long, and what a column is compared with.
AGO_S = Range(0, _CENTURY_S, unit="a time as 2026-01-31T12:00:00Z, or at most 100 years as 90s, 10m, 2h or 1d")
DURATION_S = Range(0.001, _CENTURY_S, unit="a duration from 1ms to 100 years, such as 30s, 5min, 2h or 1d")
COMPARED = Range(-1e15, 1e15)

# Of plays in virtual time.
Seeds = Annotated[int, _number(Range(1, 10_000, whole=True))]
Speed = Annotated[float, _number(Range(0.001, 1_000_000))]
Times = Annotated[float, _number(Range(0, 1_000))]
Users = Annotated[int, _number(Range(0, 1_000_000, whole=True))]
Fraction = Annotated[float, _number(Range(0, 1, above=True))]
TickS = Annotated[float, _number(Range(0, _DAY_S))]
UntilS = Annotated[float | None, _number(Range(0, _CENTURY_S, above=True))]
# 0: one for each core.
Processes = Annotated[int, _number(Range(0, 1_024, whole=True))]
