"""``muster config check`` and ``muster config diff``: show a queue configuration, its problems, and changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from muster_core.config import properties
from muster_core.config.config_diff import ConfigChange, diff, limit_text
from muster_core.config.properties import duration_text
from muster_core.config.queue_config import (
    BACKFILL_OFF,
    ClusterConfig,
    EffectiveQueue,
    PartitionConfig,
    effective_queues,
    quantity_text,
    rule_text,
    set_quantities,
)
from muster_queue_config.queue_yaml import ConfigProblem, load_queue_config
from muster_runtime.terminal import Screen, escape_invisible, marked, styled
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from muster_cli.errors import UsageError


def read(file: Path) -> str:
    """Returns a file's text; "-": that of standard input. Raises UsageError if it cannot be read."""
    try:
        if file == Path("-"):
            return sys.stdin.buffer.read().decode()
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from error


def refuse_if_wrong(file: Path) -> str:
    """Returns a usable configuration's text. Raises UsageError with every error, each with its line and column."""
    text = read(file)
    _usable(file, text)
    return text


def _usable(file: Path, text: str) -> ClusterConfig:
    config, problems = load_queue_config(text)
    if config is None:
        lines = [_line(file, problem) for problem in _in_order(problems) if problem.severity == "error"]
        raise UsageError("\n".join(["the queue configuration cannot be used:", *lines]))
    return config


# ---- check -----------------------------------------------------------------------------------------------------------


def check(file: Path, console: Screen) -> bool:
    """Prints a configuration's problems and content. Returns whether it can be used."""
    config, problems = load_queue_config(read(file))
    for problem in _in_order(problems):
        colour = "red" if problem.severity == "error" else "yellow"
        console.print(marked(f"[bold {colour}]{{}}[/] {{}}", problem.severity, _line(file, problem)), soft_wrap=True)
    if config is None:
        return False
    for partition in config.partitions:
        console.print(_tree(partition))
        console.print(_policies(partition))
    warnings = f", {len(problems)} warnings" if problems else ""
    console.print(marked("[green]{} can be used[/]{}", file, warnings))
    return True


def _in_order(problems: list[ConfigProblem]) -> list[ConfigProblem]:
    """Sorts problems by place; those without one, like "there are more", come last."""
    return sorted(problems, key=lambda problem: (not problem.line, problem.line, problem.column))


def _line(file: Path, problem: ConfigProblem) -> str:
    location = f"{file}:{problem.line}:{problem.column}" if problem.line else str(file)
    return f"{location}: {problem.path + ': ' if problem.path else ''}{problem.message}"


def _tree(partition: PartitionConfig) -> Tree:
    """Returns a tree of the queues with their effective settings, also those from above or below."""
    tree = Tree(marked("partition [bold]{}[/]", partition.name))
    branches: dict[str, Tree] = {"": tree}
    effective_properties: dict[str, dict[str, str]] = {"": {}}
    open_to: dict[str, bool] = {"": False}
    for queue in effective_queues(partition.root):
        above = queue.path.rpartition(".")[0]
        effective_properties[queue.path] = {
            **properties.inherited(effective_properties[above]),
            **queue.config.properties,
        }
        open_to[queue.path] = open_to[above] or bool(queue.config.submit_acl.strip() or queue.config.admin_acl.strip())
        branch = branches[queue.path] = branches[above].add(marked("[bold]{}[/]{}", queue.config.name, _amounts(queue)))
        for label, text in _details(queue, effective_properties[queue.path]):
            branch.add(marked("[dim]{}[/] {}", label, text))
        if queue.leaf and not open_to[queue.path]:
            branch.add(marked("[yellow]no user may submit here[/]: no queue up to root has submitacl or adminacl"))
    return tree


def _amounts(queue: EffectiveQueue) -> str:
    own = set_quantities(queue.config.maximum)
    facts = [] if queue.leaf else ["parent"]
    if queue.guaranteed:
        summed = "" if set_quantities(queue.config.guaranteed) else " (of its children)"
        facts.append(f"guaranteed {_resources(queue.guaranteed)}{summed}")
    if queue.maximum:
        from_above = {name for name, most in queue.maximum.items() if own.get(name) != most}
        facts.append(f"max {_resources(queue.maximum, from_above)}")
    if queue.max_applications:
        above = "" if queue.config.max_applications == queue.max_applications else " (from above)"
        facts.append(f"at most {queue.max_applications} applications{above}")
    return "".join(f", {fact}" for fact in facts)


def _details(queue: EffectiveQueue, effective_properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    config = queue.config
    if effective_properties:
        yield (
            "properties",
            ", ".join(
                f"{name}={text}{'' if name in config.properties else ' (from above)'}"
                for name, text in effective_properties.items()
            ),
        )
    for label, text in (("submit", config.submit_acl), ("admin", config.admin_acl)):
        if text.strip():
            yield label, _acl(text)
    for limit in config.limits:
        names = [f"user {name}" for name in limit.users] + [f"group {name}" for name in limit.groups]
        yield "limit", f"{', '.join(names)}: {limit_text(limit)}"
    template = queue.child_template
    if template is not None and not queue.leaf:
        facts = [f"{name}={text}" for name, text in template.properties.items()]
        if set_quantities(template.guaranteed):
            facts.insert(0, f"guaranteed {_written(template.guaranteed or {})}")
        if set_quantities(template.maximum):
            facts.insert(0, f"max {_written(template.maximum or {})}")
        if template.max_applications:
            facts.insert(0, f"at most {template.max_applications} applications")
        yield "new leaves below", ", ".join(facts) + ("" if config.child_template else " (from above)")


def _acl(text: str) -> str:
    """``ann,bob ops`` → ``users ann,bob; groups ops``."""
    fields = text.split()
    if len(fields) == 1 and text[0].isspace():
        return f"groups {fields[0]}"
    if fields == ["*"]:
        return "everybody"
    return "; ".join(f"{kind} {names}" for kind, names in zip(("users", "groups"), fields, strict=False))


def _policies(partition: PartitionConfig) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    weights = ", ".join(f"{name} {weight:g}" for name, weight in partition.node_sort_weights.items())
    preemption, reservation = partition.preemption, partition.reservation
    table.add_row("node sort policy", escape_invisible(f"{partition.node_sort_policy} ({weights})"))
    for number, rule in enumerate(partition.placement_rules):
        table.add_row("placement rules" if not number else "", f"{number}: {escape_invisible(rule_text(rule))}")
    table.add_row(
        "preemption",
        f"{_on(preemption.enabled)}; opted-out allocations: {'last' if preemption.opted_out_last else 'never'}; "
        f"quota preemption: {_on(preemption.quota_enabled)}",
    )
    table.add_row(
        "reservation",
        f"after {duration_text(reservation.delay_ns)}, given up after {duration_text(reservation.timeout_ns)}"
        if reservation.enabled
        else "off",
    )
    if partition.backfill != BACKFILL_OFF:
        table.add_row("backfill", partition.backfill)
    table.add_row(
        "users without groups", escape_invisible(partition.user_group_resolver) or "get a group with their own name"
    )
    return table


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _written(resources: Mapping[str, int], from_above: set[str] | None = None) -> str:
    return (
        "{"
        + ", ".join(
            f"{name} {quantity_text(name, value)}{' from above' if from_above and name in from_above else ''}"
            for name, value in resources.items()
        )
        + "}"
    )


def _resources(resources: Mapping[str, int], from_above: set[str] | None = None) -> str:
    """Returns quantities in the configuration's form: ``{memory 10Gi, vcore 2}``."""
    return escape_invisible(_written(resources, from_above))


# ---- diff ------------------------------------------------------------------------------------------------------------


def compare(old: Path, new: Path, console: Screen) -> None:
    """Prints the changes between two configurations. Raises UsageError if one of them cannot be used."""
    changes = diff(_usable(old, read(old)), _usable(new, read(new)))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    partition = None
    for change in changes:
        if change.partition != partition:
            partition = change.partition
            table.add_row("", marked("partition [bold]{}[/]", partition))
        table.add_row(*_row(change))
    if changes:
        console.print(table)
    console.print(f"{len(changes)} change{'s' if len(changes) > 1 else ''}" if changes else "no change")


def _row(change: ConfigChange) -> tuple[Text, str, str, str]:
    path = escape_invisible(change.path)
    if change.what in ("queue", "partition") and not (change.old and change.new):
        if change.new:
            return styled("+", "green"), path, escape_invisible(f"new {change.new}"), ""
        gone = "removed: its applications finish first" if change.what == "queue" else "removed"
        return styled("-", "red"), path, escape_invisible(f"{change.old} {gone}"), ""
    label = "leaf or parent" if change.what == "queue" else change.what
    return (
        styled("~", "yellow"),
        path,
        escape_invisible(label),
        escape_invisible(f"{change.old or 'not set'} -> {change.new or 'not set'}"),
    )
