"""A replay's result, as data and as tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from muster_runtime.terminal import Screen, escape_invisible, marked
from muster_si.constants import CPU, MEMORY
from rich.table import Table

from muster_replay.trace import GPU

_SHOWN = 5  # names in a complaint; the JSON has all of them


@dataclass(slots=True)
class Utilisation:
    """The use of one resource type, in its unit on the wire."""

    used: int
    capacity: int

    @property
    def percent(self) -> float:
        return 100 * self.used / self.capacity if self.capacity else 0.0


@dataclass(slots=True)
class ReplayReport:
    """A replay's result.

    :param placed: number of tasks allocated exactly once.
    :param pending: typed reason → number of tasks.
    :param examples: typed reason → one of its messages.
    :param rejected: the scheduler's text → number of tasks.
    :param unaccounted: tasks in none of these groups, or in more than one.
    :param complaints: all defects; empty after a good replay.
    :param asks_per_s: the requested pace; 0: as fast as possible.
    :param placement_rate_per_s: placed tasks, from the first ask to the last allocation.
    :param utilisation: by type, from REST; from the client if REST has none.
    :param utilisation_source: "REST" or "client".
    :param events_written: by this replay.
    """

    rm_id: str
    nodes: int
    applications: int
    tasks: int
    placed: int
    pending: dict[str, int]
    examples: dict[str, str]
    rejected: dict[str, int]
    unaccounted: list[str]
    complaints: list[str]
    placement_rate_per_s: float
    latency_p50_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    utilisation: dict[str, Utilisation]
    utilisation_source: str
    events_written: int | None
    nodes_s: float
    applications_s: float
    asks_s: float
    total_s: float
    asks_per_s: float
    streams_lost: int
    messages_sent_again: int
    next_places: dict[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether every task is accounted for exactly once, and there are no complaints."""
        return not self.unaccounted and not self.complaints

    def as_dict(self) -> dict[str, Any]:
        """Returns a form for JSON."""
        result = asdict(self)
        result["good"] = self.good
        for name, item in self.utilisation.items():
            result["utilisation"][name]["percent"] = round(item.percent, 1)
        return result


def print_report(report: ReplayReport, console: Screen | None = None) -> None:
    """Prints the tables, and places with more information."""
    console = console or Screen()
    title = f"Replay: {report.tasks:,} tasks on {report.nodes:,} nodes"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    percent = 100 * report.placed / report.tasks if report.tasks else 0.0
    table.add_row("tasks placed", f"{report.placed:,}", f"{percent:.1f} %, in {report.applications:,} applications")
    for reason, count in sorted(report.pending.items(), key=lambda item: -item[1]):
        table.add_row(
            "pending", f"{count:,}", escape_invisible(_pending(reason, count, report.examples.get(reason, "")))
        )
    if not report.pending:
        table.add_row("pending", "0", "")
    for reason, count in sorted(report.rejected.items(), key=lambda item: -item[1]):
        table.add_row("rejected", f"{count:,}", escape_invisible(reason))
    table.add_section()
    table.add_row("placement rate", f"{report.placement_rate_per_s:,.0f}/s", "first ask to last allocation")
    for name, value in (("p50", report.latency_p50_ms), ("p95", report.latency_p95_ms), ("p99", report.latency_p99_ms)):
        note = "" if report.asks_per_s or name != "p50" else "all asked at once: a queue's length"
        table.add_row(f"ask → allocation {name}", f"{value:,.1f} ms", note)
    applications = f"applications accepted in {report.applications_s:.2f} s"
    table.add_row("nodes accepted", f"{report.nodes_s:.2f} s", applications)
    if report.streams_lost:
        table.add_row("streams lost", str(report.streams_lost), f"{report.messages_sent_again} messages sent again")
    table.add_section()
    for label, name in (("cpu", CPU), ("memory", MEMORY), ("GPU", GPU)):
        if name in report.utilisation:
            item = report.utilisation[name]
            table.add_row(f"{label} used", f"{item.percent:.1f} %", _in_words(name, item))
    table.add_section()
    written = "unknown" if report.events_written is None else f"{report.events_written:,}"
    table.add_row("events written", written, "")
    console.print(table)
    for complaint in report.complaints:
        console.print(marked("[bold red]wrong:[/] {}", complaint))
    if report.unaccounted:
        console.print(
            marked(
                "[bold red]wrong:[/] {} tasks are not accounted for exactly once: {}",
                len(report.unaccounted),
                some(report.unaccounted),
            )
        )
    if report.good:
        console.print(marked("[green]Every task is accounted for exactly once.[/]"))
    for label, location in report.next_places.items():
        console.print(marked("[bold]{}:[/] {}", label, location), soft_wrap=True)


def _pending(reason: str, count: int, example: str) -> str:
    """A reason, and the message of one of the tasks that it holds back: the others ask for other amounts."""
    if not example:
        return reason
    return f"{reason}: {example}" if count == 1 else f"{reason}, for example: {example}"


def some(names: list[str]) -> str:
    """Returns the first names of a list as text."""
    return ", ".join(names[:_SHOWN]) + (f" … and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _in_words(name: str, item: Utilisation) -> str:
    if name == MEMORY:
        return f"{item.used / 2**40:,.1f} of {item.capacity / 2**40:,.1f} TiB"
    unit = "GPUs" if name == GPU else "vcores"
    return f"{item.used / 1000:,.0f} of {item.capacity / 1000:,.0f} {unit}"
