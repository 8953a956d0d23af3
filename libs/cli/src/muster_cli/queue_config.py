"""``muster config check``: a queue configuration's problems, or its tree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from muster_scheduler.core.config import VCORE, PartitionConfig, QueueConfig
from muster_scheduler.queue_yaml import Problem, load_queue_config
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from muster_cli.errors import UsageError

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def read(file: Path) -> str:
    """A file's text. Raises UsageError when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from error


def refuse_if_wrong(file: Path) -> str:
    """A usable configuration's text. Raises UsageError with every error, each with its line and column."""
    text = read(file)
    config, problems = load_queue_config(text)
    if config is None:
        lines = [_line(file, problem) for problem in problems if problem.severity == "error"]
        raise UsageError("\n".join(["the queue configuration cannot be used:", *lines]))
    return text


def check(file: Path, console: Console) -> bool:
    """Prints what is wrong with a configuration, or what it says. Whether it can be used."""
    config, problems = load_queue_config(read(file))
    for problem in problems:
        colour = "red" if problem.severity == "error" else "yellow"
        console.print(
            f"[bold {colour}]{problem.severity}[/] {escape(_line(file, problem))}", highlight=False, soft_wrap=True
        )
    if config is None:
        return False
    for partition in config.partitions:
        console.print(_tree(partition))
        console.print(_policies(partition))
    warnings = f", {len(problems)} warnings" if problems else ""
    console.print(f"[green]{escape(str(file))} can be used[/]{warnings}", highlight=False)
    return True


def _line(file: Path, problem: Problem) -> str:
    place = f"{file}:{problem.line}:{problem.column}" if problem.line else str(file)
    return f"{place}: {problem.path + ': ' if problem.path else ''}{problem.message}"


def _tree(partition: PartitionConfig) -> Tree:
    tree = Tree(f"partition [bold]{escape(partition.name)}[/]", highlight=False)
    _add(tree, partition.root)
    return tree


def _add(tree: Tree, queue: QueueConfig) -> None:
    facts = [f"[bold]{escape(queue.name)}[/]"]
    if queue.guaranteed is not None:
        facts.append(f"guaranteed {_resources(queue.guaranteed)}")
    if queue.maximum is not None:
        facts.append(f"max {_resources(queue.maximum)}")
    if queue.max_applications:
        facts.append(f"at most {queue.max_applications} applications")
    if "application.sort.policy" in queue.properties:
        facts.append(escape(queue.properties["application.sort.policy"]))
    branch = tree.add(", ".join(facts))
    for child in queue.queues:
        _add(branch, child)


def _policies(partition: PartitionConfig) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    weights = ", ".join(f"{name} {weight:g}" for name, weight in partition.node_sort_weights.items())
    rules = (
        f"{rule.name}{' ' + rule.value if rule.value else ''}{' (creates)' if rule.create else ''}"
        for rule in partition.placement_rules
    )
    table.add_row("nodes in order of", escape(f"{partition.node_sort_policy} ({weights})"))
    table.add_row("placement rules", escape(", ".join(rules)))
    return table


def _resources(resources: Mapping[str, int]) -> str:
    """As it would be written: ``{memory 10Gi, vcore 2}``."""
    return escape("{" + ", ".join(f"{name} {quantity(name, value)}" for name, value in resources.items()) + "}")


def quantity(name: str, value: int) -> str:
    """The shortest exact text of a quantity."""
    if name == VCORE:
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    power = 0
    while value and value % 1024 == 0 and power < len(_BINARY) - 1:
        value, power = value // 1024, power + 1
    return f"{value}{_BINARY[power]}"
