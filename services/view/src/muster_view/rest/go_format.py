"""Go's formats that readers see beside its JSON: numbers, durations and the unescaping of a query."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
}
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def number(value: float) -> float | int:
    """A float in Go's format: a whole number has no fraction."""
    return int(value) if value.is_integer() and abs(value) < 1e21 else value


def duration(value_ns: int) -> str:
    """Go's ``Duration.String``: ``30s``, ``5m0s``, ``1h0m0s``, ``1.5s``, ``20ms``, ``0s``."""
    if value_ns < 0:
        return f"-{duration(-value_ns)}"
    if value_ns == 0:
        return "0s"
    if value_ns < 1_000_000_000:
        for unit in ("ms", "µs", "ns"):
            if value_ns >= _UNITS_NS[unit]:
                return f"{_decimal(value_ns, _UNITS_NS[unit])}{unit}"
    minutes, rest_ns = divmod(value_ns, _UNITS_NS["m"])
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest_ns, _UNITS_NS['s'])}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def query_unescape(text: str) -> str | None:
    """``url.QueryUnescape``: None where it fails."""
    if _BAD_PERCENT.search(text):
        return None
    return unquote_plus(text)


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    if not fraction:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{fraction:0{digits}d}".rstrip("0")
