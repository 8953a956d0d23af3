"""The meaning of a queue's properties: texts in, one typed policy out.

An invalid value means the default, as in YuniKorn. YuniKorn ignores it silently; here the invalid values are returned,
so that the configuration's reader can warn with line and column.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from muster_core.model.resources import INT64_MAX

SECOND_NS = 1_000_000_000
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
_UINT64_MAX = (1 << 64) - 1

_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h)")
_PART = re.compile(r"([0-9]*\.?[0-9]*)(ns|us|µs|μs|ms|s|m|h)")
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}
_DURATION_CHARACTERS_MAX = 64  # more than any int64 of nanoseconds needs


class PreemptionPolicy(StrEnum):
    """``preemption.policy`` of a queue."""

    DEFAULT = "default"
    # Asks inside the queue do not preempt outside.
    FENCE = "fence"
    # Nothing inside the queue is preempted.
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class AppSort:
    """An order of a leaf's applications.

    :param fair: by share instead of submission.
    :param gangs: whether gangs may run in the leaf. (In order of shares, several gangs would form at the same time, and
        each would hold a part of what one of them needs: the gang design, "Handling queue with a FAIR sort policy".)
    :param decays: by the decayed use of their users (``model/decayed_usage.py``).
    """

    name: str
    fair: bool
    gangs: bool
    decays: bool = False


APP_SORTS = {
    sort.name: sort
    for sort in (
        AppSort("fifo", fair=False, gangs=True),
        AppSort("fair", fair=True, gangs=False),
        AppSort("stateaware", fair=False, gangs=True),
        AppSort("fairshare", fair=False, gangs=False, decays=True),
    )
}


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How a queue orders its content, passes on its priority, and preempts.

    :param app_sort: the order of a leaf's applications.
    :param half_life_ns: of use, if the order is by decayed use: after so long, it counts half (Muster's own key).
    :param whole_gangs: a gang starts when its queue has room for all of it, and its real asks wait until it is formed.
    :param gangs_preempted_whole: preemption takes either all members of a gang, or none.
    :param priority_first: priority comes first in the order of the queue's content.
    :param priority_fence: priorities inside count only inside; outside, the queue has ``priority_offset``.
    :param preemption_delay_ns: how old an ask must be before it may preempt.
    :param preempts_by_priority: asks may preempt lower priorities of the same leaf (Muster's own key).
    :param quota_preemption_delay_ns: how long usage may stay above a lowered max; 0: forever.
    """

    app_sort: AppSort = APP_SORTS["fifo"]
    half_life_ns: int = 24 * 3600 * SECOND_NS
    whole_gangs: bool = True
    gangs_preempted_whole: bool = False
    priority_first: bool = True
    priority_fence: bool = False
    priority_offset: int = 0
    preemption: PreemptionPolicy = PreemptionPolicy.DEFAULT
    preemption_delay_ns: int = 30 * SECOND_NS
    preempts_by_priority: bool = True
    quota_preemption_delay_ns: int = 0


DEFAULT_POLICY = QueuePolicy()


def parse_duration_ns(text: str) -> int:
    """Parses a Go duration (``1h30m``, ``500ms``) into nanoseconds. Raises ValueError."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0
    short = len(text) <= _DURATION_CHARACTERS_MAX and (body.isascii() or re.search("[µμ]s", body))
    if not short or not re.fullmatch(f"(?:{_DURATION.pattern})+", body, re.ASCII):
        raise ValueError(f"invalid duration {text[:_DURATION_CHARACTERS_MAX]!r}")
    total = sum(round(float(amount) * _UNITS_NS[unit]) for amount, unit in _PART.findall(body))
    if total > INT64_MAX:
        raise ValueError(f"invalid duration {text!r}: over {INT64_MAX} ns")
    return -total if text[0] == "-" else total


def duration_text(duration_ns: int) -> str:
    """A duration in Go's syntax: ``1h30m``. :func:`parse_duration_ns` reads it back."""
    remaining, parts = abs(duration_ns), []
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        amount, remaining = divmod(remaining, _UNITS_NS[unit])
        if amount:
            parts.append(f"{amount}{unit}")
    return ("-" if duration_ns < 0 else "") + ("".join(parts) or "0s")


def _one_of(*names: str, any_case: bool) -> Callable[[str], str]:
    def parse(text: str) -> str:
        choice = text.lower() if any_case else text
        if choice not in names:
            raise ValueError(text)
        return choice

    return parse


def _positive_duration(text: str) -> int:
    value = parse_duration_ns(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _half_life(text: str) -> int:
    value = parse_duration_ns(text)
    if value < 60 * SECOND_NS:  # the horizon moves eight times in a half-life
        raise ValueError(text)
    return value


def _duration_from_zero(text: str) -> int:
    value = parse_duration_ns(text)
    if value < 0:
        raise ValueError(text)
    return value


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text) or not low <= int(text) <= high:
            raise ValueError(text)
        return int(text)

    return parse


@dataclass(frozen=True, slots=True)
class _PropertyKey:
    """One property.

    :param default: as it would be written in a configuration.
    :param note: why the property has no effect in Muster, if it has none.
    :param deprecated: by deprecated value, what it means now.
    """

    parse: Callable[[str], object]
    expected: str
    default: str
    field: str = ""
    made: Callable[[object], object] = lambda value: value
    note: str = ""
    deprecated: Mapping[str, str] = dataclasses.field(default_factory=dict)


_NO_RETRIES = "Muster does not retry asks that cannot fit: they wait until the missing resources are free"


# One table: the allowed values, how messages describe them, and the fields that they become.
KEYS: dict[str, _PropertyKey] = {
    "application.sort.policy": _PropertyKey(
        _one_of(*APP_SORTS, any_case=False),
        "fifo, fair or fairshare",
        "fifo",
        "app_sort",
        lambda value: APP_SORTS[str(value)],
        deprecated={
            "stateaware": "it means fifo, and does not start one application at a time; with gang.start: whole, the "
            "default, no two gangs hold a part each"
        },
    ),
    "application.sort.priority": _PropertyKey(
        _one_of("enabled", "disabled", any_case=True),
        "enabled or disabled",
        "enabled",
        "priority_first",
        lambda value: value == "enabled",
    ),
    "application.sort.halflife": _PropertyKey(
        _half_life, "a duration of at least 1m, such as 24h", "24h", "half_life_ns"
    ),
    "application.unschedasks.backoff": _PropertyKey(
        _integer(0, _UINT64_MAX), "a whole number from 0 on", "0", note=_NO_RETRIES
    ),
    "application.unschedasks.backoff.delay": _PropertyKey(
        _positive_duration, "a duration above 0, such as 30s", "30s", note=_NO_RETRIES
    ),
    "priority.policy": _PropertyKey(
        _one_of("default", "fence", any_case=True),
        "default or fence",
        "default",
        "priority_fence",
        lambda value: value == "fence",
    ),
    "priority.offset": _PropertyKey(_integer(INT32_MIN, INT32_MAX), "a 32-bit integer", "0", "priority_offset"),
    "preemption.policy": _PropertyKey(
        _one_of(*PreemptionPolicy, any_case=True),
        "default, fence or disabled",
        "default",
        "preemption",
        lambda value: PreemptionPolicy(str(value)),
    ),
    "preemption.delay": _PropertyKey(
        _positive_duration, "a duration above 0, such as 30s", "30s", "preemption_delay_ns"
    ),
    "preemption.priority": _PropertyKey(
        _one_of("enabled", "disabled", any_case=True),
        "enabled or disabled",
        "enabled",
        "preempts_by_priority",
        lambda value: value == "enabled",
    ),
    "gang.start": _PropertyKey(
        _one_of("whole", "incremental", any_case=True),
        "whole or incremental",
        "whole",
        "whole_gangs",
        lambda value: value == "whole",
    ),
    "gang.preemption": _PropertyKey(
        _one_of("members", "whole", any_case=True),
        "members or whole",
        "members",
        "gangs_preempted_whole",
        lambda value: value == "whole",
    ),
    "quota.preemption.delay": _PropertyKey(
        _duration_from_zero, "a duration such as 5m; 0 is off", "0", "quota_preemption_delay_ns"
    ),
}


def policy_of(properties: Mapping[str, str]) -> QueuePolicy:
    """The policy of the properties. An invalid value means the default."""
    return _policy_of(tuple(properties.items())) if properties else DEFAULT_POLICY


@lru_cache(maxsize=1_024)  # thousands of queues inherit the same properties
def _policy_of(properties: tuple[tuple[str, str], ...]) -> QueuePolicy:
    return read(dict(properties))[0]


def read(properties: Mapping[str, str]) -> tuple[QueuePolicy, dict[str, str]]:
    """The policy of the properties; and by name of each invalid value, what was expected. Unknown names are ignored."""
    fields: dict[str, object] = {}
    wrong: dict[str, str] = {}
    for name, text in properties.items():
        key = KEYS.get(name)
        if key is None:
            continue
        try:
            value = key.parse(text)
        except ValueError:
            wrong[name] = key.expected
            continue
        if key.field:
            fields[key.field] = key.made(value)
    return replace(QueuePolicy(), **fields), wrong  # type: ignore[arg-type]  # the table pairs fields and types


def inherited(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that a configured child inherits from its parent."""
    own = {"priority.policy", "priority.offset"}
    return {
        name: value
        for name, value in properties.items()
        if name not in own and (name != "preemption.policy" or value.lower() == PreemptionPolicy.DISABLED)
    }
