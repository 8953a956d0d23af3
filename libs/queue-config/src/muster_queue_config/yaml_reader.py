"""Reads values from a YAML tree strictly. It records each problem with its place, and continues."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from muster_core.config.properties import parse_duration_ns
from muster_core.config.queue_config import InvalidQuantity, parse_quantity

from muster_queue_config.yaml_tree import Mapping, Place, Scalar, Sequence

# The answer to a registration carries the problems. It must stay a small record, whatever the text was.
PROBLEMS_MAX = 100  # of each severity
CHARACTERS_MAX = 300  # of a problem's path, and of its message

_UINT64_MAX = (1 << 64) - 1
# YAML 1.1's words. Go's reader accepts them for true and false, also in quotes.
_BOOLEANS_OF_1_1 = {
    word: meant
    for meant, words in ((True, ("y", "yes", "on")), (False, ("n", "no", "off")))
    for each in words
    for word in (each, each.capitalize(), each.upper())
}

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """A problem and its place.

    :param path: ``partitions[0].queues[1].resources.max.memory``.
    :param line: from 1; 0: no place in the text.
    :param column: from 1.
    """

    severity: Severity
    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        position = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{position}{self.path + ': ' if self.path else ''}{self.message}"


class YamlReader:
    """Reads values by their shape. A value of another shape is a problem, and the reader uses a default."""

    def __init__(self) -> None:
        self.problems: list[ConfigProblem] = []
        self._report_counts: dict[Severity, int] = {"error": 0, "warning": 0}

    # ---- problems --------------------------------------------------------------------------------------------------

    def error(self, path: str, position: Place | None, message: str) -> None:
        """Reports a problem that makes the text unusable."""
        self._report("error", path, position, message)

    def warn(self, path: str, position: Place | None, message: str) -> None:
        """Reports an accepted part that does not have the effect that it seems to have."""
        self._report("warning", path, position, message)

    def unreadable(self, position: Place | None, message: str) -> None:
        """Reports that the text is no YAML."""
        self.error("", position, message)

    @property
    def errors(self) -> int:
        """Number of errors, including those beyond the limit."""
        return self._report_counts["error"]

    def listens(self, severity: Severity) -> bool:
        """Tells whether a further problem of the severity would be recorded."""
        return self._report_counts[severity] < PROBLEMS_MAX

    def _report(self, severity: Severity, path: str, position: Place | None, message: str) -> None:
        count = self._report_counts[severity] = self._report_counts[severity] + 1
        if count > PROBLEMS_MAX:
            return
        line, column = (position[0] + 1, position[1] + 1) if position is not None else (0, 0)
        if count == PROBLEMS_MAX:
            path, message = "", f"there are more {severity}s from here on, which are not listed"
        self.problems.append(ConfigProblem(severity, truncate(path), line, column, truncate(message)))

    # ---- shapes ----------------------------------------------------------------------------------------------------

    def mapping(self, value: Any, path: str, position: Place, keys: Collection[str]) -> Mapping | None:
        """Returns a mapping with no keys but these; None if the value is none."""
        if not isinstance(value, Mapping):
            self.error(
                path, position, f"expected a mapping with keys among {', '.join(sorted(keys))}, got {kind(value)}"
            )
            return None
        for key in value:
            if key not in keys:
                self.error(
                    f"{path}.{truncate(key)}" if path else truncate(key),
                    value.key_places[key],
                    f"unknown key {truncate(key)!r}: expected one of {', '.join(sorted(keys))}",
                )
        return value

    def inner(self, owner: Mapping, key: str, path: str, keys: Collection[str]) -> Mapping | None:
        """Returns the mapping under a key; None if there is none."""
        value: Any = owner.get(key)
        if is_nothing(value):
            return None
        return self.mapping(value, f"{path}.{key}", value.place, keys)

    def sequence(self, value: Any, path: str) -> list[tuple[Any, str, Place]]:
        """Returns a list's items, each with its path and place."""
        if is_nothing(value):
            return []
        if not isinstance(value, Sequence):
            self.error(path, value.place, f"expected a list, got {kind(value)}")
            return []
        return [(item, f"{path}[{number}]", item.place) for number, item in enumerate(value)]

    def texts(self, owner: Mapping, key: str, path: str) -> list[tuple[str, str, Place]]:
        """Returns a list of texts, each with its path and place; see :meth:`text`."""
        texts: list[tuple[str, str, Place]] = []
        for item, where, position in self.sequence(owner.get(key), f"{path}.{key}"):
            if isinstance(item, Scalar) and item.value is not None:
                texts.append((item.text, where, position))
            else:
                self.error(where, position, f"expected a text, got {kind(item)}")
        return texts

    def text(self, owner: Mapping, key: str, path: str, default: str = "") -> str:
        """Returns a text as written: ``true`` and ``010`` are texts where a text is expected, as in Go's reader."""
        value: Any = owner.get(key)
        if is_nothing(value):
            return default
        if not isinstance(value, Scalar):
            self.error(f"{path}.{key}", value.place, f"expected a text, got {kind(value)}")
            return default
        return value.text

    def boolean(self, owner: Mapping, key: str, path: str, *, default: bool) -> bool:
        """Returns true or false."""
        value: Any = owner.get(key)
        if is_nothing(value):
            return default
        meant = truth(value)
        if meant is None:
            self.error(f"{path}.{key}", value.place, f"expected true or false, got {kind(value)}")
            return default
        return meant

    def count(self, owner: Mapping, key: str, path: str) -> int:
        """Returns a whole number from 0 on; 0 if it is absent."""
        value: Any = owner.get(key)
        if is_nothing(value):
            return 0
        number = value.number if isinstance(value, Scalar) else None
        if isinstance(number, float) and number.is_integer():  # such as 1e3
            number = int(number)
        if not isinstance(number, int) or not 0 <= number <= _UINT64_MAX:
            self.error(
                f"{path}.{key}", value.place, f"expected a whole number from 0 on, got {kind(value)}{quote(value)}"
            )
            return 0
        return number

    def duration(self, owner: Mapping, key: str, path: str, default_ns: int, *, least_ns: int) -> int:
        """Returns a duration in nanoseconds."""
        value: Any = owner.get(key)
        if is_nothing(value):
            return default_ns
        try:
            duration_ns = parse_duration_ns(value.text if isinstance(value, Scalar) else "")
        except ValueError:
            duration_ns = -1
        if duration_ns < least_ns:
            sign = "above" if least_ns else "from"
            self.error(
                f"{path}.{key}",
                value.place,
                f"expected a duration {sign} 0 on, such as 30s, got {kind(value)}{quote(value)}",
            )
            return default_ns
        return duration_ns

    def quantities(self, owner: Mapping, key: str, path: str) -> dict[str, int] | None:
        """Returns resource types with their quantities; None if absent."""
        value: Any = owner.get(key)
        path = f"{path}.{key}"
        if is_nothing(value):
            return None
        if not isinstance(value, Mapping):
            self.error(path, value.place, f"expected a mapping of resource types to quantities, got {kind(value)}")
            return None
        parsed: dict[str, int] = {}
        for name, quantity in value.items():
            try:
                if not isinstance(quantity, Scalar) or isinstance(quantity.value, bool | float | None):
                    raise InvalidQuantity(
                        f"invalid quantity{quote(quantity) or ' ' + kind(quantity)}: "
                        "expected digits and a suffix, such as 500m, 10, 2k or 4Gi"
                    )
                parsed[name] = parse_quantity(name, quantity.text)
            except InvalidQuantity as error:
                self.error(f"{path}.{truncate(name)}", quantity.place, str(error))
        return parsed


def is_nothing(value: Any) -> bool:
    """Tells whether a value is absent, or null."""
    return value is None or (isinstance(value, Scalar) and value.value is None)


def truth(value: Any) -> bool | None:
    """Returns a value's meaning as true or false; None: neither."""
    meant = value.value if isinstance(value, Scalar) else None
    if isinstance(meant, str):
        return _BOOLEANS_OF_1_1.get(meant)
    return meant if isinstance(meant, bool) else None


def place_of(owner: Mapping, key: str, default: Place) -> Place:
    """Returns the place of a key's value."""
    return owner[key].place if key in owner else default


def truncate(text: str) -> str:
    """Cuts a text to the greatest length in messages."""
    return text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 1]}…"


def quote(value: Any) -> str:
    """Returns a scalar's text, with a space before it."""
    return f" {truncate(value.text)!r}" if isinstance(value, Scalar) and value.text else ""


def kind(value: Any) -> str:
    """Describes the kind of a value."""
    if is_nothing(value):
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence):
        return "a list"
    if isinstance(value.value, bool):
        return "true or false"
    return {int: "a number", float: "a number with a fraction"}.get(type(value.value), "a text")
