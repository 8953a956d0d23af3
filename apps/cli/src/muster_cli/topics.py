"""``muster topics``: creates, checks and lists the topics, also of an embedded log that no process has open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster_bus.clock import SystemClock
from muster_bus.errors import LogError, LogRefused, TopicMismatch
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics, TopicSpec
from muster_runtime import logs
from muster_runtime.terminal import Screen, print_lines
from rich.table import Table

from muster_cli.errors import CommandError, UsageError
from muster_cli.existing_log import with_existing_partitions
from muster_cli.settings import MusterSettings, load

if TYPE_CHECKING:
    from muster_bus.backends.kafka_check import Extent, KafkaChecked

Work = Callable[[Log, Topics], Awaitable[None]]
_MS_PER_DAY = 24 * 60 * 60 * 1000


def create(file: Path | None, assignments: Sequence[str]) -> int:
    """Creates missing topics. Returns the exit code."""
    settings = settings_of(file, assignments)

    async def work(bus: Log, topics: Topics) -> None:
        for spec in topics.specs():
            print_lines(f"{spec.name}: {_format_spec(spec)}")

    return with_log(settings.log, lambda log: make_log(log, SystemClock()), work)


def verify(file: Path | None, assignments: Sequence[str]) -> int:
    """Checks the topics and changes nothing. Returns the exit code."""
    settings = settings_of(file, assignments)

    async def work(bus: Log, topics: Topics) -> None:
        if settings.log.backend == "kafka":
            await checked_log(bus, settings.scheduler.group, "ends")
        print_lines(f"{len(topics.specs())} topics match their configuration")

    return with_log(settings.log, unchanged, work)


async def checked_log(bus: Log, group: str, extent: Extent) -> KafkaChecked:
    """Compares a log on Kafka with what the last commits noted. Raises CommandError with what is damaged, LogError.

    :param group: of the scheduler.
    """
    from muster_bus.backends.kafka import KafkaLog
    from muster_bus.backends.kafka_check import KafkaCheck

    assert isinstance(bus, KafkaLog), "the log is on Kafka"
    checked = await KafkaCheck(bus, group).run(extent)
    if checked.breaks:
        raise CommandError("\n".join(f"{bus.name}: {break_}" for break_ in checked.breaks))
    if checked.unnoted:
        print_lines(f"{checked.unnoted} partitions have no note: they get one with their next commit (docs/backup.md)")
    return checked


def describe(file: Path | None, assignments: Sequence[str]) -> int:
    """Lists the topics and their content. Returns the exit code."""
    settings = settings_of(file, assignments)

    async def work(bus: Log, topics: Topics) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("topic", no_wrap=True)
        table.add_column("settings")
        table.add_column("partition", justify="right")
        table.add_column("first offset", justify="right")
        table.add_column("end offset", justify="right")
        for spec in topics.specs():
            for partition in range(spec.partitions):
                first, end = await _ends(bus, spec.name, partition)
                head = (spec.name, _format_spec(spec)) if partition == 0 else ("", "")
                table.add_row(*head, str(partition), str(first), str(end))
        Screen().print(table)

    return with_log(settings.log, unchanged, work)


def settings_of(file: Path | None, assignments: Sequence[str]) -> MusterSettings:
    """Returns the settings of a command that shows little of the log's own messages."""
    settings = load(file, assignments).values
    logs.configure("warning", settings.process.log_format)
    return settings


def with_log(settings: LogSettings, make: Callable[[LogSettings], Log], work: Work) -> int:
    """Does the work with a started log, whose partitions are those that exist unless the settings name a number."""

    async def run() -> None:
        present = await with_existing_partitions(settings, SystemClock())
        bus = make(present)
        try:
            await bus.start()
            await work(bus, present.topics())
        finally:
            await bus.close()

    try:
        asyncio.run(run())
    except LogRefused as error:
        raise UsageError(str(error)) from error
    except LogError as error:
        raise CommandError(str(error)) from error
    return 0


async def _ends(bus: Log, topic: str, partition: int) -> tuple[int, int]:
    reader = await bus.reader(topic, partition)
    try:
        return await reader.first_offset(), await reader.end_offset()
    finally:
        await reader.close()


def _format_spec(spec: TopicSpec) -> str:
    kept = ["newest per key"] if "compact" in spec.cleanup else []
    if "delete" in spec.cleanup:
        kept.append(f"{spec.retention_ms / _MS_PER_DAY:g} days" if spec.retention_ms >= 0 else "for ever")
    return f"{spec.partitions} partitions, {spec.replication} copies, {', '.join(kept)}"


def unchanged(settings: LogSettings) -> Log:
    """Returns the log in a form that creates no topics."""
    if settings.backend == "sqlite" and not settings.sqlite_path.exists():
        raise CommandError(f"{settings.sqlite_path} does not exist; muster up or muster topics create creates it")
    if settings.backend != "kafka":
        return make_log(settings, SystemClock())
    from muster_bus.backends.kafka import KafkaLog

    class Unchanged(KafkaLog):
        async def _create_absent(self, admin: Any) -> None:
            existing = set(await admin.list_topics())
            absent = [spec.name for spec in settings.topics().specs() if spec.name not in existing]
            if absent:
                raise TopicMismatch(f"absent: {', '.join(absent)}; muster topics create creates them")

    return Unchanged(settings.topics().specs(), settings, SystemClock())
