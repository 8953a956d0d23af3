"""An RM's event settings in ``extraConfig``. The scheduler and the event publisher both read them here.

The keys are those of the event history design (``service.event.*``) and those that YuniKorn reads (``event.*``). Each
may have the prefix ``service.`` or not. Values are parsed as Go's ``strconv`` parses them, because RMs are written for
YuniKorn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# The values that Go's strconv.ParseBool accepts.
_BOOLS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)
_BOOL_WORDS = "one of 1, t, T, TRUE, true, True, 0, f, F, FALSE, false, False"
# Go's strconv.ParseUint(text, 10, 32): ASCII digits only, no sign, no space, no underscore.
_UINT = re.compile("[0-9]+").fullmatch
_UINT32_MAX = 2**32 - 1
_UINT_WORDS = f"an unsigned integer of at most {_UINT32_MAX}, digits only"
_SHOWN_LENGTH_MAX = 100


@dataclass(frozen=True, slots=True)
class EventSettings:
    """How Muster makes, keeps and serves an RM's events. The defaults are those of the event history design and
    YuniKorn.

    ``given`` names the fields that the RM has set. For other fields the publisher's own settings are the defaults. A
    capacity of 0 turns the store off, as in the event history design.
    """

    tracking_enabled: bool = True
    request_events_enabled: bool = False
    request_store_capacity: int = 1_000
    ring_buffer_capacity: int = 100_000
    rest_response_size: int = 10_000
    max_streams: int = 100
    max_streams_per_host: int = 15
    given: frozenset[str] = field(default=frozenset())

    @property
    def tracks(self) -> bool:
        """Tells whether the scheduler records events of changes."""
        return self.tracking_enabled and self.ring_buffer_capacity > 0

    @property
    def tells_requests(self) -> bool:
        """Tells whether the scheduler makes request events for the RM."""
        return self.request_events_enabled and self.request_store_capacity > 0


DEFAULT = EventSettings()


def _bool(text: str) -> bool | None:
    return _BOOLS.get(text)


def _uint32(text: str) -> int | None:
    if not _UINT(text):
        return None
    digits = text.lstrip("0")
    # Python refuses to parse thousands of digits; ten are enough.
    return value if len(digits) <= 10 and (value := int(digits or "0")) <= _UINT32_MAX else None


# For each field: its parser, its expected values, and its names. If an RM gives several names, the first one counts.
_FIELDS: dict[str, tuple[Callable[[str], bool | int | None], str, tuple[str, ...]]] = {
    "tracking_enabled": (_bool, _BOOL_WORDS, ("trackingEventsEnabled", "trackingEnabled")),
    "request_events_enabled": (_bool, _BOOL_WORDS, ("requestEventsEnabled",)),
    "request_store_capacity": (_uint32, _UINT_WORDS, ("requestStoreCapacity", "requestCapacity")),
    "ring_buffer_capacity": (_uint32, _UINT_WORDS, ("ringBufferCapacity",)),
    "rest_response_size": (_uint32, _UINT_WORDS, ("RESTResponseSize",)),
    "max_streams": (_uint32, _UINT_WORDS, ("maxStreams",)),
    "max_streams_per_host": (_uint32, _UINT_WORDS, ("maxStreamsPerHost",)),
}
_PREFIXES = ("service.event.", "event.")


def keys_of(name: str) -> tuple[str, ...]:
    """Returns every key that sets the field ``name``. If an RM gives several, the first one counts."""
    return tuple(prefix + word for word in _FIELDS[name][2] for prefix in _PREFIXES)


_NAME_OF = {key: name for name in _FIELDS for key in keys_of(name)}
KEYS: frozenset[str] = frozenset(_NAME_OF)
# Shows only the first names: a registration's warnings travel in metadata, which has little room.
_WORDS = ", ".join(names[0] for _, _, names in _FIELDS.values())
_BY_LOWER_CASE = {key.lower(): key for key in KEYS}


def read(extra_config: Mapping[str, str], before: EventSettings = DEFAULT) -> tuple[EventSettings, list[str]]:
    """Returns the settings in an RM's whole ``extraConfig``, and its problems.

    An absent key has its default, because an RM always sends all its settings. A bad value keeps the value of
    ``before``. Each problem is a sentence that names the key, its value and the expectation.
    """
    values: dict[str, Any] = {}
    declared = set()
    problems = []
    for name, (parse, expected, _) in _FIELDS.items():
        keys = [key for key in keys_of(name) if key in extra_config]
        if not keys:
            continue
        key, *others = keys
        value = parse(extra_config[key])
        if value is not None:
            values[name] = value
            declared.add(name)
        elif name in before.given:
            values[name] = getattr(before, name)
            declared.add(name)
        if value is None:
            in_use = values.get(name, getattr(DEFAULT, name))
            problems.append(f"{key}: {_shown(extra_config[key])} is not {expected}; {_said(in_use)} stays in use")
        problems.extend(
            f"{alias}: {_shown(extra_config[alias])} is not used, because {key} sets the same and differs"
            for alias in others
            if parse(extra_config[alias]) != value
        )
    problems.extend(_unknown(extra_config))
    return replace(DEFAULT, **values, given=frozenset(declared)), problems


def merged(extra_config: Mapping[str, str], added: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Merges ``added`` into an RM's ``extraConfig``. Returns the whole configuration to record, and the problems.

    A bad value is left out. So the earlier value stays in use, also after a restart and for readers of the record
    alone. An earlier value under another key of the same setting is removed.
    """
    before, _ = read(extra_config)
    _, problems = read(added, before)
    good = {key: value for key, value in added.items() if key not in KEYS or _parse(key, value) is not None}
    named = {_NAME_OF[key] for key in good if key in KEYS}
    kept = {key: value for key, value in extra_config.items() if _NAME_OF.get(key) not in named or key in good}
    return {**kept, **good}, problems


def _parse(key: str, value: str) -> bool | int | None:
    return _FIELDS[_NAME_OF[key]][0](value)


def _unknown(extra_config: Mapping[str, str]) -> list[str]:
    problems = []
    for key in sorted(extra_config):
        if not key.startswith(_PREFIXES) or key in KEYS:
            continue
        meant = _BY_LOWER_CASE.get(key.lower())
        expected = f"did you mean {meant}?" if meant else f"expected {_PREFIXES[0]} with one of {_WORDS}"
        problems.append(f"{_cut(key)}: not a setting of events, so it has no effect; {expected}")
    return problems


def _shown(value: str) -> str:
    return f'"{_cut(value)}"'


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH_MAX else text[:_SHOWN_LENGTH_MAX] + "…"


def _said(value: bool | int) -> str:
    return str(value).lower()
