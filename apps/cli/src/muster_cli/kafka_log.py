"""``muster verify`` and ``muster repair`` for a log on Kafka (docs/backup.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster_bus.backends.breaks import Break, BreakKind
from muster_bus.clock import SystemClock
from muster_bus.log import Log, OutRecord
from muster_bus.topics import Topics
from muster_runtime.terminal import print_lines

from muster_cli.errors import CommandError
from muster_cli.topics import checked_log, settings_of, unchanged, with_log

_GATEWAY = "muster-repair"


def verify(file: Path | None, assignments: Sequence[str]) -> int:
    """Reads the whole log and compares it with what the last commits noted; changes nothing. Returns the exit code."""
    settings = settings_of(file, assignments)

    async def work(bus: Log, topics: Topics) -> None:
        checked = await checked_log(bus, settings.scheduler.group, "all")
        for gap in checked.gaps:
            print_lines(gap)
        but = f", but for {len(checked.gaps)} accepted gaps" if checked.gaps else ""
        print_lines(f"the log at Kafka {settings.log.kafka_bootstrap_servers}: whole{but}; {checked.records} records")

    return with_log(settings.log, unchanged, work)


def repair(accept: Sequence[str], file: Path | None, assignments: Sequence[str]) -> int:
    """Lists what is damaged or missing, and goes on without it if all is accepted. Returns the exit code."""
    settings = settings_of(file, assignments)

    async def work(bus: Log, topics: Topics) -> None:
        from muster_bus.backends.kafka import KafkaLog
        from muster_bus.backends.kafka_check import KafkaCheck

        assert isinstance(bus, KafkaLog), "the log is on Kafka"
        breaks = {break_.word: break_ for break_ in (await KafkaCheck(bus, settings.scheduler.group).run("all")).breaks}
        if not breaks:
            print_lines(f"{bus.name}: whole; there is nothing to repair")
            return
        if any(word not in accept for word in breaks) or any(
            break_.kind is BreakKind.BLOCK for break_ in breaks.values()
        ):
            _refuse(bus.name, breaks)
        await _accept(bus, settings.scheduler.group, list(breaks.values()))

    return with_log(settings.log, unchanged, work)


def _refuse(name: str, breaks: dict[str, Break]) -> None:
    for word, break_ in breaks.items():
        print_lines(f"{word}  {break_}")
    if any(break_.kind is BreakKind.BLOCK for break_ in breaks.values()):
        raise CommandError(
            f"{name}: nothing was changed. Kafka refuses to read a batch that is not as it was written: let a broker "
            "with a whole copy lead the partition, and delete the damaged copy (docs/backup.md)"
        )
    words = " ".join(f"--accept {word}" for word in breaks)
    raise CommandError(
        f"{name}: {len(breaks)} parts are damaged or missing. Nothing was changed. Let brokers with whole copies lead "
        f"these partitions. To go on without these parts, stop all schedulers: muster repair {words}"
    )


async def _accept(bus: Log, group: str, breaks: Sequence[Break]) -> None:
    from muster_bus.backends.kafka import KafkaLog
    from muster_bus.backends.kafka_check import accept_breaks
    from muster_gateway.codec import RequestCodec

    assert isinstance(bus, KafkaLog), "the log is on Kafka"
    codec, clock = RequestCodec(bus.settings.topics(), _GATEWAY), SystemClock()

    def notice(rm_id: str) -> OutRecord:
        mine = [str(break_) for break_ in breaks if break_.partition == bus.settings.topics().partition_of(rm_id)]
        story = f"the log goes on without {len(mine)} parts that were damaged or missing: {mine[0]}"
        return codec.loss(rm_id, story, clock.now_ns())

    for done in await accept_breaks(bus, group, breaks, notice):
        whose = f"; {', '.join(map(repr, done.rms))} will have an event" if done.rms else ""
        print_lines(f"partition {done.partition}: goes on, with requests from {done.position} on{whose}")
