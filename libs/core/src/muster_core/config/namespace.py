"""The quota of an application's namespace, from the application's tags, for its queue.

The quota counts only for a dynamic queue, and each new application sets it anew. A value that cannot be read, or is not
above zero, is ignored: the annotation of a namespace does not reject an application.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from muster_si.constants import (
    APP_TAG_NAMESPACE_RESOURCE_GUARANTEED,
    APP_TAG_NAMESPACE_RESOURCE_MAX_APPS,
    APP_TAG_NAMESPACE_RESOURCE_QUOTA,
)
from muster_si.tags import tag_value

from muster_core.model.resources import INT64_MAX

_TYPES_MAX = 64
_UINT64_MAX = (1 << 64) - 1
_COUNT = re.compile(r"0*([0-9]{1,20})\Z", re.ASCII)


class NamespaceQuota(NamedTuple):
    """By type name; None: not set; applications 0: not set."""

    guaranteed: dict[str, int] | None
    maximum: dict[str, int] | None
    max_applications: int

    def __bool__(self) -> bool:
        return self.guaranteed is not None or self.maximum is not None or self.max_applications > 0


def quota_of(tags: Mapping[str, str]) -> NamespaceQuota:
    """Reads the quota from the tags, whose names are compared in any case; each resource is the JSON of an
    si.v1.Resource.
    """
    applications = _COUNT.match(tag_value(tags, APP_TAG_NAMESPACE_RESOURCE_MAX_APPS))
    count = int(applications[1]) if applications is not None else 0
    return NamespaceQuota(
        _resource(tag_value(tags, APP_TAG_NAMESPACE_RESOURCE_GUARANTEED)),
        _resource(tag_value(tags, APP_TAG_NAMESPACE_RESOURCE_QUOTA)),
        count if count <= _UINT64_MAX else 0,
    )


def _resource(text: str) -> dict[str, int] | None:
    """Reads the JSON as Go does: only whole numbers are quantities, an absent one is 0, and keys have any case.
    Protobuf's JSON is taken, too: whole numbers as texts.
    """
    if not text:
        return None
    try:
        raw = _field(json.loads(text), "resources")
        quantities = {name: _quantity(_field(quantity, "value")) for name, quantity in raw.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if (
        not quantities
        or len(quantities) > _TYPES_MAX
        or any(not 0 <= value <= INT64_MAX for value in quantities.values())
    ):
        return None
    return quantities if any(quantities.values()) else None


def _field(raw: Any, name: str) -> Any:
    return next((raw[key] for key in reversed(raw.keys()) if key.lower() == name), None)


def _quantity(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, str) and _COUNT.match(value):  # as protobuf's own JSON writes an int64
        return int(value)
    if type(value) is not int:  # (True and False are whole numbers to Python)
        raise TypeError
    return value
