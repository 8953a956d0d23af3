"""The configuration in force in YuniKorn's shape, as JSON and as YAML; and the check of a configuration.

``/config`` is the text that the RM registered with, parsed again; keys that it does not set are left out, as in
YuniKorn. Like YuniKorn, Muster fills in a partition's name, a root above queues without one, root as a parent, and the
partition's limits for a root without limits. Secrets in texts are masked.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from muster_core.config.queue_config import ROOT, partition_name
from muster_queue_config.errors import QueueConfigError
from muster_queue_config.queue_yaml import checksum
from muster_queue_config.sandboxed_parser import SandboxedParser
from muster_queue_config.yaml_reader import truth
from muster_queue_config.yaml_tree import Mapping, Place, Scalar, Sequence, read_tree
from muster_rest.shapes.configuration import ValidatedDao
from muster_runtime.secrets import masked, masked_text
from ruamel.yaml import YAML

# The configuration of an RM that sent none (core.config.DEFAULT_CONFIG), as text.
DEFAULT_TEXT = """
partitions:
  - name: default
    placementrules:
      - {name: tag, create: true, value: namespace}
      - {name: provided, create: true}
    queues:
      - {name: root, parent: true, submitacl: '*'}
"""


# How many configurations are cached with their answers: one for each RM that is asked about.
_KEPT = 8
_Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _ConfigField:
    """A key: its name in Go, the reader of its value, and whether the answer has it when it is not set."""

    go_name: str
    read: Callable[[Any, bool], Any]
    always: bool = False


_Level = dict[str, _ConfigField]


def _text(node: Any, _go: bool) -> Any:
    return masked_text(node.text) if isinstance(node, Scalar) and node.value is not None else ""


def _flag(node: Any, _go: bool) -> Any:
    return truth(node)


def _value(node: Any, _go: bool) -> Any:
    value = node.number if isinstance(node, Scalar) else None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _texts(node: Any, go: bool) -> Any:
    return [_text(child, go) for child in node] if isinstance(node, Sequence) else []


def _text_map(node: Any, go: bool) -> Any:
    return masked(_quantities(node, go))


def _quantities(node: Any, go: bool) -> dict[str, str]:
    return {name: _text(child, go) for name, child in sorted(node.items())} if isinstance(node, Mapping) else {}


def _number_map(node: Any, go: bool) -> Any:
    return {name: _value(child, go) for name, child in sorted(node.items())} if isinstance(node, Mapping) else {}


def _one(level: _Level) -> Callable[[Any, bool], Any]:
    return lambda node, go: _taken(node, level, go)


def _many(level: _Level) -> Callable[[Any, bool], Any]:
    return lambda node, go: [_taken(child, level, go) for child in node] if isinstance(node, Sequence) else []


def _taken(node: Any, level: _Level, go: bool) -> dict[str, Any]:
    """A mapping in Go's order of fields, without zero and empty values, as ``omitempty`` does."""
    mapping = node if isinstance(node, Mapping) else {}
    values: dict[str, Any] = {}
    for key, field in level.items():
        value = field.read(mapping.get(key), go)
        if field.go_name in _STRUCTS and isinstance(value, dict):
            # Go's JSON never leaves out a struct; its YAML leaves out a struct with only empty values, even required
            # ones. (False appears only if it was set.)
            is_shown = go or any(inner_value or inner_value is False for inner_value in value.values())
        else:
            # For a pointer, false differs from absent.
            is_shown = bool(value) or field.always or (value is False and field.go_name in _POINTERS)
        if is_shown:
            values[field.go_name if go else key] = value
    return values


# Structs in Go, which JSON keeps when they are empty.
_STRUCTS = frozenset({"Resources", "ChildTemplate", "Preemption", "NodeSortPolicy", "UserGroupResolver", "Filter"})
# Pointers.
_POINTERS = frozenset({"Enabled", "QuotaPreemptionEnabled"})

_RESOURCES: _Level = {"guaranteed": _ConfigField("Guaranteed", _quantities), "max": _ConfigField("Max", _quantities)}
_LIMIT: _Level = {
    "limit": _ConfigField("Limit", _text, always=True),
    "users": _ConfigField("Users", _texts),
    "groups": _ConfigField("Groups", _texts),
    "maxresources": _ConfigField("MaxResources", _quantities),
    "maxapplications": _ConfigField("MaxApplications", _value),
}
_TEMPLATE: _Level = {
    "maxapplications": _ConfigField("MaxApplications", _value),
    "properties": _ConfigField("Properties", _text_map),
    "resources": _ConfigField("Resources", _one(_RESOURCES)),
}
_QUEUE: _Level = {
    "name": _ConfigField("Name", _text, always=True),
    "parent": _ConfigField("Parent", _flag),
    "resources": _ConfigField("Resources", _one(_RESOURCES)),
    "maxapplications": _ConfigField("MaxApplications", _value),
    "properties": _ConfigField("Properties", _text_map),
    "adminacl": _ConfigField("AdminACL", _text),
    "submitacl": _ConfigField("SubmitACL", _text),
    "childtemplate": _ConfigField("ChildTemplate", _one(_TEMPLATE)),
}
_QUEUE |= {"queues": _ConfigField("Queues", _many(_QUEUE)), "limits": _ConfigField("Limits", _many(_LIMIT))}
_FILTER: _Level = {
    "type": _ConfigField("Type", _text, always=True),
    "users": _ConfigField("Users", _texts),
    "groups": _ConfigField("Groups", _texts),
}
_RULE: _Level = {
    "name": _ConfigField("Name", _text, always=True),
    "create": _ConfigField("Create", _flag),
    "filter": _ConfigField("Filter", _one(_FILTER)),
}
_RULE |= {
    "parent": _ConfigField("Parent", lambda node, go: _taken(node, _RULE, go) if isinstance(node, Mapping) else None),
    "value": _ConfigField("Value", _text),
}
_PREEMPTION: _Level = {
    "enabled": _ConfigField("Enabled", _flag),
    "quotapreemptionenabled": _ConfigField("QuotaPreemptionEnabled", _flag),
    "optout": _ConfigField("OptOut", _text),
}
_NODE_SORT: _Level = {
    "type": _ConfigField("Type", _text, always=True),
    "resourceweights": _ConfigField("ResourceWeights", _number_map),
}
# (The only key whose name in JSON differs from Go's.)
_RESOLVER: _Level = {"type": _ConfigField("type", _text)}
_RESERVATION: _Level = {
    "enabled": _ConfigField("Enabled", _flag),
    "delay": _ConfigField("Delay", _text),
    "timeout": _ConfigField("Timeout", _text),
}
_PARTITION: _Level = {
    "name": _ConfigField("Name", _text, always=True),
    "queues": _ConfigField("Queues", _many(_QUEUE), always=True),
    "placementrules": _ConfigField("PlacementRules", _many(_RULE)),
    "limits": _ConfigField("Limits", _many(_LIMIT)),
    "preemption": _ConfigField("Preemption", _one(_PREEMPTION)),
    "nodesortpolicy": _ConfigField("NodeSortPolicy", _one(_NODE_SORT)),
    "usergroupresolver": _ConfigField("UserGroupResolver", _one(_RESOLVER)),
    "reservation": _ConfigField("Reservation", _one(_RESERVATION)),
}


# The answer without any RM. (YuniKorn watches its locks only on request, with a time-out of 60 s. Muster has no locks.)
NOTHING: dict[str, Any] = {"Partitions": [], "DeadlockDetectionEnabled": False, "DeadlockTimeoutSeconds": 60}


def to_dao(text: str, extra: dict[str, str], *, go: bool) -> dict[str, Any]:
    """A configuration as YuniKorn's ``ConfigDAOInfo``.

    The first call for a large text takes seconds, so it must not run on the event loop.

    :param text: a configuration that was accepted.
    :param extra: the RM's extra configuration.
    :param go: True: Go's names, as in JSON; False: lower-case keys, as in YAML.
    """
    return _shown(text, tuple(sorted(extra.items())), go)


def as_yaml(text: str, extra: dict[str, str]) -> bytes:
    """The same configuration as YAML."""
    return _as_yaml(text, tuple(sorted(extra.items())))


@lru_cache(maxsize=_KEPT)
def _shown(text: str, pairs: _Pairs, go: bool) -> dict[str, Any]:
    extra = dict(pairs)
    tree = read_tree(text if text.strip() else DEFAULT_TEXT, _unheard)
    nodes: Iterable[Any] = tree.get("partitions") or () if isinstance(tree, Mapping) else ()
    partitions = [_normal(_taken(node, _PARTITION, go), go) for node in nodes]
    values = {"Partitions": partitions, "Checksum": checksum(text)} | ({"Extra": masked(extra)} if extra else {})
    values |= {name: value for name, value in NOTHING.items() if name not in values}
    return values if go else {name.lower(): value for name, value in values.items()}


@lru_cache(maxsize=_KEPT)
def _as_yaml(text: str, pairs: _Pairs) -> bytes:
    yaml: Any = YAML(typ="safe")
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    # Repeated values are written out, as Go does: readers that go line by line know no anchors.
    yaml.representer.ignore_aliases = lambda _: True
    out = io.BytesIO()
    yaml.dump(_shown(text, pairs, False), out)
    return out.getvalue()


async def validate(body: bytes, judge: SandboxedParser) -> ValidatedDao:
    """The verdict on a configuration, as the gateway gives it for a registration."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return ValidatedDao(allowed=False, reason=f"the configuration is not UTF-8: byte {error.start}")
    if not text.strip():
        return ValidatedDao(allowed=True)
    try:
        judged = await judge.parse(text)
    except QueueConfigError as error:
        return ValidatedDao(allowed=False, reason=str(error))
    if judged.accepted:
        return ValidatedDao(allowed=True)
    errors = [str(problem) for problem in judged.problems if problem.severity == "error"]
    return ValidatedDao(allowed=False, reason="\n".join(errors))


def _unheard(_place: Place | None, _message: str) -> None:
    """Ignores a warning: the text was accepted, and the RM got its warnings then."""


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
    if not root.get(name("Parent")):  # root is a parent, even if the text does not say so
        (first, value), *others = root.items()
        root = {first: value, name("Parent"): True, **dict(others)}
        partition[name("Queues")][0] = root
    if partition.get(limits) and not root.get(limits):
        root[limits] = partition[limits]
    return partition
