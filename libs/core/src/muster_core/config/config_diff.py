"""The differences of two configurations as plain lines: for the answer to a hot reload, and for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from muster_core.config.properties import duration_text
from muster_core.config.queue_config import (
    ChildTemplateConfig,
    ClusterConfig,
    EffectiveQueue,
    LimitConfig,
    PartitionConfig,
    effective_queues,
    quantity_text,
    rule_text,
    set_quantities,
)
from muster_core.model.steps import SOME

# Limit of a value in a line: access lists and lists of rules may be long, and an answer has many lines.
CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One changed setting.

    :param path: the queue's path, lower case; "": the partition itself.
    :param what: the key in the configuration (``resources.max.memory``, ``limits.user ann``). ``queue`` for a queue
        that is new, removed or of another kind (values "leaf" and "parent"); ``partition`` for one that is new or
        removed.
    :param old: the former value; "": it was not set, or did not exist.
    :param new: the new value; "": it is not set any more, or gone: a queue drains.
    """

    path: str
    what: str
    old: str
    new: str
    partition: str

    def __str__(self) -> str:
        where = f"[{self.partition}]{' ' + self.path if self.path else ''}"
        return f"{where} {_shown(self.what)}: {_shown(self.old) or 'not set'} -> {_shown(self.new) or 'not set'}"


def _shown(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 1]}…"


def diff(old: ClusterConfig, new: ClusterConfig) -> list[ConfigChange]:
    """All differences that matter: partitions in the old order, then new ones; their queues and keys likewise."""
    return [change for change in differences(old, new) if change is not None]


def differences(old: ClusterConfig, new: ClusterConfig) -> Iterator[ConfigChange | None]:
    """The same one by one, with a None after each few queues: there, others can work."""
    before = {partition.name.lower(): partition for partition in old.partitions}
    after = {partition.name.lower(): partition for partition in new.partitions}
    for key, partition in {**before, **after}.items():
        was, becomes = before.get(key), after.get(key)
        if was is not None and becomes is not None:
            yield from _partition_changes(was, becomes)
        else:
            kinds = ("partition" if was is not None else "", "partition" if becomes is not None else "")
            yield ConfigChange("", "partition", *kinds, partition.name)


def _partition_changes(old: PartitionConfig, new: PartitionConfig) -> Iterator[ConfigChange | None]:
    for fact, text, new_text in _pairs(_partition_facts(old), _partition_facts(new)):
        yield ConfigChange("", fact, text, new_text, old.name)
    before: dict[str, EffectiveQueue] = {}
    after: dict[str, EffectiveQueue] = {}
    for root, queues in ((old.root, before), (new.root, after)):
        for queue in effective_queues(root):
            queues[queue.path] = queue
            if not len(queues) % SOME:
                yield None
    for count, path in enumerate({**before, **after}, 1):
        if not count % SOME:
            yield None
        was, becomes = before.get(path), after.get(path)
        if was is not None and becomes is not None:
            for fact, text, new_text in _pairs(_queue_facts(was), _queue_facts(becomes)):
                yield ConfigChange(path, fact, text, new_text, old.name)
            yield from _moved_groups(was, becomes, old.name)
        else:
            yield ConfigChange(path, "queue", _kind(was), _kind(becomes), old.name)


def _kind(queue: EffectiveQueue | None) -> str:
    return "" if queue is None else "leaf" if queue.leaf else "parent"


def _pairs(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for fact in {**old, **new}:
        if old.get(fact, "") != new.get(fact, ""):
            yield fact, old.get(fact, ""), new.get(fact, "")


# ---- facts: every key that is set, with its value as text ------------------------------------------------------------


def _partition_facts(config: PartitionConfig) -> dict[str, str]:
    return {
        "placementrules": "; ".join(rule_text(rule) for rule in config.placement_rules),
        "nodesortpolicy.type": config.node_sort_policy,
        **{f"nodesortpolicy.resourceweights.{name}": _number(w) for name, w in config.node_sort_weights.items() if w},
        "preemption.enabled": _flag(config.preemption.enabled),
        "preemption.quotapreemptionenabled": _flag(config.preemption.quota_enabled),
        "preemption.optout": "last" if config.preemption.opted_out_last else "never",
        "reservation.enabled": _flag(config.reservation.enabled),
        "reservation.delay": duration_text(config.reservation.delay_ns),
        "reservation.timeout": duration_text(config.reservation.timeout_ns),
        "backfill": config.backfill,
        "usergroupresolver.type": config.user_group_resolver,
    }


def _queue_facts(queue: EffectiveQueue) -> dict[str, str]:
    config = queue.config
    return {
        "queue": _kind(queue),
        **_amounts("", config.guaranteed, config.maximum, config.max_applications, config.properties),
        "submitacl": config.submit_acl,
        "adminacl": config.admin_acl,
        **_template_facts(config.child_template or ChildTemplateConfig()),
        **{f"limits.{who}": text for limit in config.limits for who, text in _limit_facts(limit)},
    }


def _template_facts(template: ChildTemplateConfig) -> dict[str, str]:
    return _amounts(
        "childtemplate.", template.guaranteed, template.maximum, template.max_applications, template.properties
    )


def _amounts(
    prefix: str,
    guaranteed: dict[str, int] | None,
    maximum: dict[str, int] | None,
    max_applications: int,
    properties: Mapping[str, str],
) -> dict[str, str]:
    return {
        **_quantities(f"{prefix}resources.guaranteed", guaranteed),
        **_quantities(f"{prefix}resources.max", maximum),
        f"{prefix}maxapplications": str(max_applications or ""),
        **{f"{prefix}properties.{name}": text for name, text in properties.items()},
    }


def _quantities(prefix: str, quantities: dict[str, int] | None) -> dict[str, str]:
    return {f"{prefix}.{name}": quantity_text(name, value) for name, value in set_quantities(quantities).items()}


def _limit_facts(limit: LimitConfig) -> Iterator[tuple[str, str]]:
    text = limit_text(limit)
    yield from ((f"user {name}", text) for name in limit.users)
    yield from ((f"group {name}", text) for name in limit.groups)


def limit_text(limit: LimitConfig) -> str:
    """A limit in one line: ``max {memory 1Gi}, at most 5 applications``."""
    parts = []
    if limit.max_resources:
        quantities = (f"{name} {quantity_text(name, value)}" for name, value in limit.max_resources.items())
        parts.append(f"max {{{', '.join(quantities)}}}")
    if limit.max_applications:
        parts.append(f"at most {limit.max_applications} applications")
    return ", ".join(parts)


def _moved_groups(old: EffectiveQueue, new: EffectiveQueue, partition: str) -> Iterator[ConfigChange]:
    """The order of groups decides in which one a user counts. Yields a change if only the order differs."""
    before, after = ([name for limit in queue.config.limits for name in limit.groups] for queue in (old, new))
    if before != after and sorted(before) == sorted(after):
        yield ConfigChange(old.path, "limits.order of groups", ", ".join(before), ", ".join(after), partition)


def _number(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _flag(value: bool) -> str:
    return "true" if value else "false"
