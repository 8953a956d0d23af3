"""Steps in words that a person can read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from muster_core.model.commands import (
    AppItem,
    AskItem,
    Command,
    NodeItem,
    ReleaseItem,
    SetSchedulingEnabled,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from simulation.books import SECOND_NS, Document
from simulation.run import BEGIN_NS, Step


def told(document: Document, steps: Sequence[Step]) -> str:
    """A configuration and the steps that follow."""
    lines = [f"configuration: {json.dumps(document)}"]
    now_ns = BEGIN_NS
    for number, step in enumerate(steps, 1):
        now_ns += step.advance_ns
        budget = "" if step.budget > 1_000_000 else f", at most {step.budget} allocations"
        lines.append(f"step {number}, {now_ns / SECOND_NS:.9g} s{budget}{', then a restart' if step.restart else ''}:")
        if step.registers:
            lines.append("  the RM registers anew")
        for command, offered in step.commands:
            lines += (f"  {line}" for line in _command(command, offered))
    return "\n".join(lines)


def _command(command: Command, offered: Document | None) -> Iterable[str]:
    match command:
        case UpdateAllocations():
            for release in command.releases:
                yield _release(release)
            for item in command.asks:
                yield _ask(item)
        case UpdateApplications():
            for app in command.new:
                yield _application(app)
            for partition, app_id in command.remove:
                yield f"remove application {app_id}{_in(partition)}"
        case UpdateNodes():
            for node in command.nodes:
                yield _node(node)
                for item in node.existing:
                    yield f"  with {_ask(item)}"
        case UpdateConfiguration():
            yield f"configuration: {json.dumps(offered)}"
        case SetSchedulingEnabled():
            yield f"decide: {command.deciding}"
        case _:
            yield str(command)


def _ask(item: AskItem) -> str:
    words = [f"ask {item.key} of {item.app_id or 'nobody'}{_in(item.partition)}: {item.quantities}"]
    if item.node_id:
        words[0] = words[0].replace("ask ", f"allocation on {item.node_id} ", 1)
    words += [f"{name} {value}" for name, value in (("times", item.wanted), ("priority", item.priority)) if value]
    flags = {
        "may preempt": item.allow_preempt_other,
        "may go": item.allow_preempt_self,
        "originator": item.originator,
        "placeholder": item.placeholder,
        "previous generation": item.previous_generation,
    }
    words += [name for name, value in flags.items() if value]
    if item.task_group:
        words.append(f"task group {item.task_group}")
    if item.execution_timeout_ms:
        words.append(f"for {item.execution_timeout_ms} ms")
    if item.tags:
        words.append(f"tags {item.tags}")
    if item.uuid:
        words.append(f"uuid {item.uuid}")
    return ", ".join(words)


def _release(item: ReleaseItem) -> str:
    kind = "ask" if item.ask_only else Termination(item.termination).name
    uuid = f" ({item.uuid})" if item.uuid else ""
    return f"release {kind} {item.key or 'everything'}{uuid} of {item.app_id or 'nobody'}{_in(item.partition)}"


def _application(item: AppItem) -> str:
    words = [f"application {item.app_id}{_in(item.partition)} to {item.queue!r} by {item.user!r} of {item.groups}"]
    if item.tags:
        words.append(f"tags {item.tags}")
    if item.execution_timeout_ms:
        words.append(f"for {item.execution_timeout_ms} ms")
    if item.placeholder_ask:
        words.append(f"placeholders {item.placeholder_ask}")
    if item.gang_style:
        words.append(f"style {item.gang_style}")
    return ", ".join(words)


def _node(item: NodeItem) -> str:
    words = [f"node {item.node_id}{_in(item.partition)} {item.action.name}"]
    if item.capacity is not None:
        words.append(str(item.capacity))
    if item.occupied is not None:
        words.append(f"occupied {item.occupied}")
    if item.attributes:
        words.append(f"attributes {item.attributes}")
    return ", ".join(words)


def _in(partition: str) -> str:
    return "" if partition == "default" else f" in partition {partition!r}"
