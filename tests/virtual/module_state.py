"""State of modules: what a dead process would lose with its memory, and what the processes of a run share here.

Each is named, and reset when a run begins and when a process dies. What changes in a run and is not named fails
``test_parts.py``. Metrics (prometheus-client's registry) are not reset: nothing that decides reads them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

# What it is: caches are functions of their arguments, so that nothing but memory is lost with them.
NAMED = {
    "muster_core.scheduler._BLANK": "an empty core, that others are compared with",
    "muster_event_publisher.event_json._BACKS": "parts of events as JSON",
    "muster_event_publisher.event_json._DETAILS": "parts of events as JSON",
    "muster_event_publisher.event_json._FRONTS": "parts of events as JSON",
    "muster_event_publisher.event_json._UPPER_TIMES": "parts of events as JSON",
    "muster_gateway.response_delivery._FEEDS": "feeds, to count what waits in them",
    "muster_runtime.secrets._masked_short": "texts without secrets",
    "muster_runtime.secrets.is_secret": "whether a name may be that of a secret",
    "muster_scheduler.event_wire._object": "encoded parts of events",
    "muster_scheduler.event_wire._quantities": "encoded parts of events",
    "muster_scheduler.event_wire._quantity": "encoded parts of events",
    "muster_scheduler.event_wire._reference": "encoded parts of events",
    "muster_state.protobuf_wire.kept_number": "encoded parts of the state",
    "muster_state.protobuf_wire.kept_text": "encoded parts of the state",
    "muster_state.encoding._external_head": "encoded parts of the state",
    "muster_state.protobuf_wire._amount": "encoded parts of the state",
    "muster_state.protobuf_wire._amounts": "encoded parts of the state",
    "muster_view.rest.queue_config_dao._shown": "configurations as REST shows them",
    "muster_view.rest.object_ids._ulid": "ids as REST shows them",
    "muster_runtime.secrets.masked_yaml": "configurations without secrets",
}
_CONTAINERS = (dict, list, set, deque, WeakSet)


def reset() -> None:
    """Empties all that is named."""
    for name in NAMED:
        path, _, attribute = name.rpartition(".")
        module = sys.modules.get(path)
        if module is None:
            continue
        found = getattr(module, attribute)
        if hasattr(found, "cache_clear"):
            found.cache_clear()
        elif attribute == "_FEEDS":
            for feeds in found.values():
                feeds.clear()
        else:
            found.clear()


def sizes() -> dict[str, Any]:
    """Returns what tells whether a container or a cache of Muster's modules has changed, by its name."""
    return {name: look() for name, look in _all()}


def _all() -> Iterator[tuple[str, Callable[[], Any]]]:
    seen: set[int] = set()
    for path, module in sorted(sys.modules.items()):
        if not path.startswith("muster_") or path.startswith("muster_proto") or module is None:
            continue
        places = [(path, vars(module))]
        places += [
            (f"{path}.{name}", vars(each))
            for name, each in vars(module).items()
            if isinstance(each, type) and each.__module__ == path
        ]
        for where, names in places:
            for name, found in list(names.items()):
                if name.startswith("__") or name in ("model_fields", "_abc_impl") or id(found) in seen:
                    continue
                if isinstance(found, _CONTAINERS):
                    seen.add(id(found))
                    yield f"{where}.{name}", lambda found=found: (len(found), repr(found)[:2000])  # type: ignore[misc]
                elif hasattr(found, "cache_info") and _is_of(found, path):
                    seen.add(id(found))
                    yield f"{where}.{name}", lambda found=found: found.cache_info().currsize  # type: ignore[misc]


def _is_of(cache: Any, path: str) -> bool:
    """Tells whether a cache belongs to a module that has it; it may also be imported there."""
    home = sys.modules.get(getattr(cache, "__module__", None) or "")
    return getattr(cache, "__module__", path) == path or getattr(home, cache.__name__, None) is not cache
