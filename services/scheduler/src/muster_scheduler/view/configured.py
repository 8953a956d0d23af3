"""The configuration in force in the real core's shape, as JSON and as YAML, and judging one (core-features §2.19).

``/config`` is the text that the RM registered with, read again: what it does not say is left out, as there. Beside
that, as the real core does: a partition's name is never empty, queues without a root stand below one, and root has its
partition's limits when it has none of its own. Secrets in texts are masked.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec import Struct
from muster_service.secrets import masked, masked_text
from ruamel.yaml import YAML

from muster_scheduler.core.config import ROOT, partition_name
from muster_scheduler.queue_yaml import TEXT_BYTES_MAX, checksum, load_queue_config
from muster_scheduler.yaml_reader import truth
from muster_scheduler.yaml_tree import Mapping, Place, Scalar, Sequence, read_tree

# What an RM without a configuration gets (core.config.DEFAULT_CONFIG), as text.
DEFAULT_TEXT = """
partitions:
  - name: default
    placementrules:
      - {name: tag, create: true, value: namespace}
      - {name: provided, create: true}
    queues:
      - {name: root, parent: true, submitacl: '*'}
"""


# Configurations whose answers are kept: those of so many RMs that are asked for.
_KEPT = 8
_Pairs = tuple[tuple[str, str], ...]


class ValidatedDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """Whether a configuration would be accepted; the reason: each error on a line of its own."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Field:
    """A key: its name in Go, how its value is read, and whether it is there when it is not set."""

    go_name: str
    read: Callable[[Any, bool], Any]
    always: bool = False


_Level = dict[str, _Field]


def _text(node: Any, _go: bool) -> Any:
    return masked_text(node.text) if isinstance(node, Scalar) and node.value is not None else ""


def _flag(node: Any, _go: bool) -> Any:
    return truth(node)


def _value(node: Any, _go: bool) -> Any:
    value = node.value if isinstance(node, Scalar) else None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _texts(node: Any, go: bool) -> Any:
    return [_text(each, go) for each in node] if isinstance(node, Sequence) else []


def _text_map(node: Any, go: bool) -> Any:
    return masked(_quantities(node, go))


def _quantities(node: Any, go: bool) -> dict[str, str]:
    return {name: _text(each, go) for name, each in sorted(node.items())} if isinstance(node, Mapping) else {}


def _number_map(node: Any, go: bool) -> Any:
    return {name: _value(each, go) for name, each in sorted(node.items())} if isinstance(node, Mapping) else {}


def _one(level: _Level) -> Callable[[Any, bool], Any]:
    return lambda node, go: _taken(node, level, go)


def _many(level: _Level) -> Callable[[Any, bool], Any]:
    return lambda node, go: [_taken(each, level, go) for each in node] if isinstance(node, Sequence) else []


def _taken(node: Any, level: _Level, go: bool) -> dict[str, Any]:
    """What a mapping says, in Go's order of fields; what is zero or empty is left out, as ``omitempty`` does."""
    given = node if isinstance(node, Mapping) else {}
    found: dict[str, Any] = {}
    for key, field in level.items():
        value = field.read(given.get(key), go)
        if field.go_name in _STRUCTS and isinstance(value, dict):
            # Go leaves no struct out of JSON; its YAML leaves out one in which all is empty, also what is always there.
            # (False is there only where it was said.)
            wanted = go or any(each or each is False for each in value.values())
        else:
            # Where it has a pointer, false is not the same as not said.
            wanted = bool(value) or field.always or (value is False and field.go_name in _POINTERS)
        if wanted:
            found[field.go_name if go else key] = value
    return found


# Structs in Go, whose JSON is there when they are empty.
_STRUCTS = frozenset({"Resources", "ChildTemplate", "Preemption", "NodeSortPolicy", "UserGroupResolver", "Filter"})
# Pointers.
_POINTERS = frozenset({"Enabled", "QuotaPreemptionEnabled"})

_RESOURCES: _Level = {"guaranteed": _Field("Guaranteed", _quantities), "max": _Field("Max", _quantities)}
_LIMIT: _Level = {
    "limit": _Field("Limit", _text, always=True),
    "users": _Field("Users", _texts),
    "groups": _Field("Groups", _texts),
    "maxresources": _Field("MaxResources", _quantities),
    "maxapplications": _Field("MaxApplications", _value),
}
_TEMPLATE: _Level = {
    "maxapplications": _Field("MaxApplications", _value),
    "properties": _Field("Properties", _text_map),
    "resources": _Field("Resources", _one(_RESOURCES)),
}
_QUEUE: _Level = {
    "name": _Field("Name", _text, always=True),
    "parent": _Field("Parent", _flag),
    "resources": _Field("Resources", _one(_RESOURCES)),
    "maxapplications": _Field("MaxApplications", _value),
    "properties": _Field("Properties", _text_map),
    "adminacl": _Field("AdminACL", _text),
    "submitacl": _Field("SubmitACL", _text),
    "childtemplate": _Field("ChildTemplate", _one(_TEMPLATE)),
}
_QUEUE |= {"queues": _Field("Queues", _many(_QUEUE)), "limits": _Field("Limits", _many(_LIMIT))}
_FILTER: _Level = {
    "type": _Field("Type", _text, always=True),
    "users": _Field("Users", _texts),
    "groups": _Field("Groups", _texts),
}
_RULE: _Level = {
    "name": _Field("Name", _text, always=True),
    "create": _Field("Create", _flag),
    "filter": _Field("Filter", _one(_FILTER)),
}
_RULE |= {
    "parent": _Field("Parent", lambda node, go: _taken(node, _RULE, go) if isinstance(node, Mapping) else None),
    "value": _Field("Value", _text),
}
_PREEMPTION: _Level = {
    "enabled": _Field("Enabled", _flag),
    "quotapreemptionenabled": _Field("QuotaPreemptionEnabled", _flag),
    "optout": _Field("OptOut", _text),
}
_NODE_SORT: _Level = {
    "type": _Field("Type", _text, always=True),
    "resourceweights": _Field("ResourceWeights", _number_map),
}
# (The only one for which the core gives JSON a name of its own.)
_RESOLVER: _Level = {"type": _Field("type", _text)}
_RESERVATION: _Level = {
    "enabled": _Field("Enabled", _flag),
    "delay": _Field("Delay", _text),
    "timeout": _Field("Timeout", _text),
}
_PARTITION: _Level = {
    "name": _Field("Name", _text, always=True),
    "queues": _Field("Queues", _many(_QUEUE), always=True),
    "placementrules": _Field("PlacementRules", _many(_RULE)),
    "limits": _Field("Limits", _many(_LIMIT)),
    "preemption": _Field("Preemption", _one(_PREEMPTION)),
    "nodesortpolicy": _Field("NodeSortPolicy", _one(_NODE_SORT)),
    "usergroupresolver": _Field("UserGroupResolver", _one(_RESOLVER)),
    "reservation": _Field("Reservation", _one(_RESERVATION)),
}


# Without any RM.
NOTHING: dict[str, Any] = {"Partitions": [], "DeadlockDetectionEnabled": False, "DeadlockTimeoutSeconds": 0}


def shown(text: str, extra: dict[str, str], *, go: bool) -> dict[str, Any]:
    """A configuration as the real core's ``ConfigDAOInfo``.

    Seconds for the largest texts, the first time: not for the event loop.

    :param text: of a configuration that was accepted.
    :param extra: the RM's extra configuration.
    :param go: Go's names, as in JSON; else lower-case keys, as in YAML.
    """
    return _shown(text, tuple(sorted(extra.items())), go)


def as_yaml(text: str, extra: dict[str, str]) -> bytes:
    """The same as YAML."""
    return _as_yaml(text, tuple(sorted(extra.items())))


@lru_cache(maxsize=_KEPT)
def _shown(text: str, pairs: _Pairs, go: bool) -> dict[str, Any]:
    extra = dict(pairs)
    tree = read_tree(text if text.strip() else DEFAULT_TEXT, _unheard)
    given: Iterable[Any] = tree.get("partitions") or () if isinstance(tree, Mapping) else ()
    partitions = [_normal(_taken(each, _PARTITION, go), go) for each in given]
    values = {"Partitions": partitions, "Checksum": checksum(text)} | ({"Extra": masked(extra)} if extra else {})
    values |= {name: value for name, value in NOTHING.items() if name not in values}
    return values if go else {name.lower(): value for name, value in values.items()}


@lru_cache(maxsize=_KEPT)
def _as_yaml(text: str, pairs: _Pairs) -> bytes:
    yaml: Any = YAML(typ="safe")
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    # What stands twice is written twice, as Go does: whoever reads line by line knows no anchors.
    yaml.representer.ignore_aliases = lambda _: True
    out = io.BytesIO()
    yaml.dump(_shown(text, pairs, False), out)
    return out.getvalue()


def validated(body: bytes) -> ValidatedDao:
    """What the scheduler would say of a configuration. Takes seconds for the largest ones: not for the event loop."""
    if len(body) > TEXT_BYTES_MAX:
        return ValidatedDao(allowed=False, reason=f"the configuration is over {TEXT_BYTES_MAX} bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return ValidatedDao(allowed=False, reason=f"the configuration is not UTF-8: byte {error.start}")
    config, problems = load_queue_config(text)
    if config is not None:
        return ValidatedDao(allowed=True)
    return ValidatedDao(allowed=False, reason="\n".join(str(each) for each in problems if each.severity == "error"))


def _unheard(_place: Place | None, _message: str) -> None:
    """The text was accepted: what is unusual in it was told then."""


def _normal(partition: dict[str, Any], go: bool) -> dict[str, Any]:
    def name(key: str) -> str:
        return key if go else key.lower()

    limits = name("Limits")
    partition[name("Name")] = partition_name(partition[name("Name")])
    queues: list[dict[str, Any]] = partition[name("Queues")]
    if len(queues) != 1 or queues[0][name("Name")].lower() != ROOT:
        above = _taken(Mapping((0, 0)), _QUEUE, go) | {name("Name"): ROOT, name("Parent"): True}
        partition[name("Queues")] = [above | ({name("Queues"): queues} if queues else {})]
    root: dict[str, Any] = partition[name("Queues")][0]
    if partition.get(limits) and not root.get(limits):
        root[limits] = partition[limits]
    return partition
