"""The quota of an application's namespace, from the application's tags, for its queue.

The quota counts only for a dynamic queue, and each new application sets it anew. A value that cannot be read, or is not
above zero, is ignored: the annotation of a namespace does not reject an application.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from muster_si.constants import (
    APP_TAG_NAMESPACE_RESOURCE_GUARANTEED,
    APP_TAG_NAMESPACE_RESOURCE_MAX_APPS,
    APP_TAG_NAMESPACE_RESOURCE_QUOTA,
)

from muster_core.model.resources import INT64_MAX

_TYPES_MAX = 64
_DIGITS_MAX = 19


class NamespaceQuota(NamedTuple):
    """By type name; None: not set; applications 0: not set."""

    guaranteed: dict[str, int] | None
    maximum: dict[str, int] | None
    max_applications: int

    def __bool__(self) -> bool:
        return self.guaranteed is not None or self.maximum is not None or self.max_applications > 0


def quota_of(tags: Mapping[str, str]) -> NamespaceQuota:
    """Reads the quota from the tags; each resource is the JSON of an si.v1.Resource."""
    applications = tags.get(APP_TAG_NAMESPACE_RESOURCE_MAX_APPS, "").strip()
    readable = applications.isascii() and applications.isdigit() and len(applications) <= _DIGITS_MAX
    return NamespaceQuota(
        _resource(tags.get(APP_TAG_NAMESPACE_RESOURCE_GUARANTEED, "")),
        _resource(tags.get(APP_TAG_NAMESPACE_RESOURCE_QUOTA, "")),
        int(applications) if readable else 0,
    )


def _resource(text: str) -> dict[str, int] | None:
    if not text:
        return None
    try:
        said = json.loads(text)["resources"]
        found = {name: int(quantity["value"]) for name, quantity in said.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not found or len(found) > _TYPES_MAX or any(not 0 <= value <= INT64_MAX for value in found.values()):
        return None
    return found if any(found.values()) else None
