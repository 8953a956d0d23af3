"""``muster migrate``, ``muster topics grow``: records in another log, or in more partitions (docs/growing.md).

No process of Muster runs meanwhile. Each command can be interrupted at any moment; the same command continues it.
The steps of a growth on Kafka:

1. Copy the topics to staging topics (prefix ``growing.``), which have the new number of partitions. The topics stay as
   they are.
2. Mark the topics as incomplete (``muster.copying``), and delete them.
3. Copy the staging topics back.
4. Delete the staging topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from muster_bus.backends.sqlite_copy_target import SqliteTarget
from muster_bus.clock import Clock, SystemClock
from muster_bus.copying.copier import copy
from muster_bus.copying.target import CopyTarget
from muster_bus.errors import CopyRejected, LogError, LogRefused, TopicMismatch
from muster_bus.settings import LogSettings
from muster_event_publisher.errors import InvalidSinkSettings
from muster_event_publisher.history.file_stores import store_from_location
from muster_event_publisher.history.registry import configured_stores
from muster_gateway.errors import GatewayError
from muster_gateway.sessions import make_sessions
from muster_gateway.settings import GatewaySettings
from muster_runtime import logs
from muster_runtime.terminal import print_lines

from muster_cli import backup
from muster_cli.errors import CommandError, UsageError
from muster_cli.existing_log import partitions_of
from muster_cli.settings import HISTORY_DIR, MusterSettings, embedded_defaults, load
from muster_cli.topics import checked_log, unchanged

_STAGING = "growing."
_PROGRESS_INTERVAL_S = 2.0


def migrate(
    data_dir: Path | None,
    file: Path | None,
    assignments: Sequence[str],
    to_data_dir: Path | None,
    to_file: Path | None,
    to_assignments: Sequence[str],
) -> int:
    """Copies the log of one Muster into a new one. Returns the exit code."""
    old_settings, new_settings = _settings(data_dir, file, assignments), _settings(to_data_dir, to_file, to_assignments)
    if old_settings.log.backend == "memory" or new_settings.log.backend == "memory":
        raise UsageError("log.backend memory: expected sqlite or kafka, whose records outlive a process")
    if _location(old_settings.log) == _location(new_settings.log):
        raise UsageError(f"{_location(new_settings.log)}: is the log to copy; expected another one")
    others = history_and_usage_lines(data_dir, new_settings)
    clock = SystemClock()

    async def work() -> tuple[int, int]:
        source = await _with_actual_partitions(old_settings.log, clock)
        log = new_settings.log
        if "partitions" not in log.model_fields_set:  # the default; partitions can only grow
            log = log.model_copy(update={"partitions": max(log.partitions, source.partitions)})
        record_count = await _copy(source, _target(log, clock), old_settings.scheduler.group, clock)
        await _forget_sessions(new_settings.gateway, clock)
        return record_count, log.partitions

    record_count, partitions = _run(work())
    print_lines(f"{_location(new_settings.log)}: {record_count} records copied; {partitions} partitions")
    for line in others:
        print_lines(line)
    print_lines("The old log is as it was. Start Muster with the new one, and keep the old one until you are content.")
    return 0


def history_and_usage_lines(data_dir: Path | None, new_settings: MusterSettings) -> list[str]:
    """Returns what the new Muster has of history and usage, which are not on the log; one line each.

    :param data_dir: of the old Muster; None: it had none.
    :param new_settings: the settings of the new Muster.

    Raises UsageError if its stores cannot be used.
    """
    old = data_dir / HISTORY_DIR if data_dir is not None else None
    return [
        f"history: {_history(old if old is not None and old.is_dir() else None, new_settings)}",
        f"usage: {_usage(new_settings)}",
    ]


def _history(old: Path | None, new_settings: MusterSettings) -> str:
    try:
        stores = configured_stores(new_settings.publisher)
        places = {
            name: store_from_location(location)
            for name, (_, options) in stores.items()
            if isinstance(location := options.get("location"), str)
        }
    except (InvalidSinkSettings, ValueError) as error:
        raise UsageError(str(error)) from error
    if not stores:
        advice = (
            f"; to go on with the old one, set publisher.sinks.parquet.location to {old}" if old is not None else ""
        )
        return f"none configured (publisher.sinks): what the log deletes is lost{advice}"
    named = ", ".join(f"{name} ({places[name].display_name})" if name in places else name for name in stores)
    if old is None:
        return named
    if any(Path(file_store.display_name).absolute() == old.absolute() for file_store in places.values()):
        return f"goes on in {named}"
    return f"{named}; the old one stays in {old}: copy it, or set publisher.sinks.parquet.location to it"


def _usage(new_settings: MusterSettings) -> str:
    if not new_settings.log.derived_topics:
        return "none (log.derived_topics is false)"
    if new_settings.log.backend == "kafka":
        return "start `muster derive`: it makes usage from the events that were copied, and from new ones"
    return (
        "made by muster up"
        if new_settings.derive.enabled and new_settings.derive.usage
        else "none (derive.enabled, derive.usage)"
    )


def grow(partitions: int, data_dir: Path | None, file: Path | None, assignments: Sequence[str]) -> int:
    """Moves the records of all RMs to more partitions. Returns the exit code."""
    settings = _settings(data_dir, file, assignments)
    log = settings.log.model_copy(update={"partitions": partitions})
    clock = SystemClock()
    if log.backend == "memory":
        raise UsageError("log.backend memory: expected sqlite or kafka, whose records outlive a process")
    if log.backend == "kafka":
        done = _run(_grow_kafka(settings.log, log, settings.scheduler.group, settings.gateway, clock))
    elif data_dir is None:
        raise UsageError("--data-dir: expected the directory of muster up")
    else:
        done = _run(_grow_file(settings.log, log, settings.scheduler.group, data_dir, clock))
    print_lines(f"{_location(log)}: {partitions} partitions; " + ("grown" if done else "it has that many already"))
    print_lines(f"Where the setting log.partitions names a number, it must be {partitions} from now on.")
    return 0


async def _grow_file(current: LogSettings, grown: LogSettings, group: str, data_dir: Path, clock: Clock) -> bool:
    target = SqliteTarget(grown, clock, lambda kept: backup.move_aside(data_dir, replace=True, keep=kept))
    with backup.locked(data_dir):
        if target.finish_interrupted():
            return True
    source = await _with_actual_partitions(current, clock)
    if source.partitions == grown.partitions:
        return False
    log = unchanged(source)
    try:
        await log.start()
        await target.start()
        await copy(log, source.topics(), target, group, _ProgressPrinter(clock).progress)
        await log.close()
        with backup.locked(data_dir):
            await target.finish()
    finally:
        await log.close()
        await target.close()
    return True


async def _grow_kafka(
    current: LogSettings, grown: LogSettings, group: str, gateway: GatewaySettings, clock: Clock
) -> bool:
    """The numbers are those of the module's docstring."""
    from muster_bus.backends.kafka import copying_topic
    from muster_bus.backends.kafka_copy_target import KafkaTarget, KafkaTopics

    staging = grown.model_copy(update={"topic_prefix": f"{grown.topic_prefix}{_STAGING}", "derived_topics": False})
    topics, staged = KafkaTopics(grown, clock), KafkaTopics(staging, clock)
    marker, staging_marker = copying_topic(grown.topic_prefix), copying_topic(staging.topic_prefix)
    try:
        await topics.start()
        await staged.start()
        present, in_staging = await topics.partitions(), await staged.partitions()
        if marker not in present:
            if present.get(grown.topics().requests) == grown.partitions:
                await staged.delete()  # 4
                return bool(in_staging)
            if staging_marker in in_staging or not in_staging:
                source = await _with_actual_partitions(current, clock)
                await _copy(source, KafkaTarget(staging, clock), group, clock)  # 1
            await topics.begin_copy()  # 2
        elif not in_staging or staging_marker in in_staging:
            raise CommandError(
                f"topic {marker} exists without staging topics ({staging.topic_prefix}si.*): expected those of an "
                "interrupted muster topics grow; a muster migrate into these topics may have been interrupted"
            )
        old = [name for name, count in (await topics.partitions()).items() if count != grown.partitions]
        await topics.delete([name for name in old if name != marker])
        copied = KafkaTarget(grown, clock)
        await _copy(staging, copied, group, clock)  # 3
        await _forget_sessions(gateway, clock)
        await staged.delete()  # 4
    finally:
        await topics.close()
        await staged.close()
    return True


async def _copy(source: LogSettings, target: CopyTarget, group: str, clock: Clock) -> int:
    """Copies a log, and finishes the target. Returns the number of records."""
    log = unchanged(source)
    try:
        await log.start()
        if source.backend == "kafka":  # the notes are not copied
            await checked_log(log, group, "start")
        await target.start()
        record_count = await copy(log, source.topics(), target, group, _ProgressPrinter(clock).progress)
        await target.finish()
    finally:
        await target.close()
        await log.close()
    return record_count


class _ProgressPrinter:
    """Prints the progress, every few seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._next_s = clock, clock.monotonic() + _PROGRESS_INTERVAL_S

    def progress(self, topic: str, done: int, total: int) -> None:
        if self._clock.monotonic() >= self._next_s:
            self._next_s = self._clock.monotonic() + _PROGRESS_INTERVAL_S
            print_lines(f"{topic}: {done} of {total}")


async def _with_actual_partitions(settings: LogSettings, clock: Clock) -> LogSettings:
    """Returns the settings of an existing log, with the number of partitions that it has. Raises CommandError."""
    topics = settings.topics()
    if settings.backend == "sqlite" and not settings.sqlite_path.exists():
        raise CommandError(f"{settings.sqlite_path} does not exist: expected the log of a Muster")
    count = await partitions_of(settings, clock)
    if not count:
        raise CommandError(f"{_location(settings)} has no topic {topics.requests}: expected the log of a Muster")
    return settings.model_copy(update={"partitions": count, "derived_topics": False})


def _target(settings: LogSettings, clock: Clock) -> CopyTarget:
    if settings.backend == "sqlite":
        return SqliteTarget(settings, clock)
    from muster_bus.backends.kafka_copy_target import KafkaTarget

    return KafkaTarget(settings, clock)


async def _forget_sessions(settings: GatewaySettings, clock: Clock) -> None:
    """Gateways read the sessions from the new log: those in the store belong to another one."""
    store = make_sessions(settings, clock)
    try:
        await store.start()
        await store.clear()
    except GatewayError as error:
        raise CommandError(
            f"the log is copied, but its sessions are not cleared: {error}. Expected the session store of "
            "gateway.sessions_url; run the same command again, or delete the store's content"
        ) from error
    finally:
        await store.close()


def _settings(data_dir: Path | None, file: Path | None, assignments: Sequence[str]) -> MusterSettings:
    defaults = embedded_defaults(data_dir) if data_dir is not None else None
    settings = load(file, assignments, defaults=defaults).values
    if settings.log.backend == "sqlite" and data_dir is None:
        raise UsageError("expected the directory of muster up (--data-dir, --to-data-dir), or log.backend kafka")
    logs.configure("warning", settings.process.log_format)
    return settings


def _location(settings: LogSettings) -> str:
    if settings.backend == "kafka":
        return f"Kafka {settings.kafka_bootstrap_servers} {settings.topic_prefix}si.*"
    return str(settings.sqlite_path.absolute())


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return asyncio.run(work)
    except (LogRefused, TopicMismatch, CopyRejected) as error:
        raise UsageError(str(error)) from error
    except LogError as error:
        raise CommandError(str(error)) from error
