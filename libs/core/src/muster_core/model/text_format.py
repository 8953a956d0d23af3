"""Quantities and times as people read them: cores, GiB, minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster_si.constants import CPU, MEMORY

# In thousandths of a core.
_CORES = CPU
_BYTES = frozenset({MEMORY, "ephemeral-storage"})
_BYTES_PREFIX = "hugepages-"
_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DIGITS_MAX = 3
SECOND_NS = 1_000_000_000
_TIMES = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def format_amount(kind: str, value: int) -> str:
    """An amount of a type: ``4 cores``, ``16 GiB``, ``3 license``."""
    return format_amounts(kind, value)[0]


def format_amounts(kind: str, *values: int) -> list[str]:
    """Several amounts that one sentence compares: different amounts get different texts."""
    for digits in range(1, _DIGITS_MAX + 1):
        texts = [_amount(kind, value, digits) for value in values]
        if len(set(texts)) == len(set(values)):
            return texts
    return [pluralize(value, _BINARY[0].removesuffix("s")) for value in values]


def format_bare(kind: str, value: int) -> str:
    """An amount, without its type if the type has no unit: ``4 cores``, ``16 GiB``, ``3``."""
    return format_amount(kind, value).removesuffix(f" {kind}")


def _amount(kind: str, value: int, digits: int) -> str:
    if kind == _CORES:
        # (A thousandth is the smallest amount, so nothing is rounded.)
        number = _number(value / 1000, 3)
        return f"{number} core{'' if value == 1000 else 's'}"
    if kind in _BYTES or kind.startswith(_BYTES_PREFIX):
        return _bytes(value, digits)
    return f"{value:,} {kind}"


def _bytes(value: int, digits: int) -> str:
    size, step = float(abs(value)), 0
    while size >= 1024 and step + 1 < len(_BINARY):
        size, step = size / 1024, step + 1
    unit = "byte" if step == 0 and size == 1 else _BINARY[step]
    return f"{'-' if value < 0 else ''}{_number(size, digits)} {unit}"


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".")


def pluralize(number: int, singular: str, plural: str = "") -> str:
    """``1 ask``, ``2 asks``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_duration(duration_ns: int) -> str:
    """A duration in its two largest units: ``3 minutes``, ``1 hour 5 minutes``, ``less than a second``."""
    remaining = max(duration_ns, 0) // SECOND_NS  # (the caller may use another clock)
    parts: list[str] = []
    for name, seconds in _TIMES:
        number, remainder = divmod(remaining, seconds)
        if number or parts:
            parts.append(pluralize(number, name) if number else "")
            remaining = remainder
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "less than a second"


def join_words(parts: Sequence[str], word: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {word} {parts[-1]}"


def format_quantities(quantities: Mapping[str, int]) -> str:
    """Quantities as YuniKorn's messages write them."""
    return f"map[{' '.join(f'{name}:{quantities[name]}' for name in sorted(quantities))}]"
