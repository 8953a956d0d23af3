"""The commands ``muster simulate`` and ``muster what-if``: workloads in virtual time (docs/what-if.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from muster_cli import numbers
from muster_cli.errors import UsageError
from muster_cli.flags import ReportFile, SettingsFlags
from muster_cli.history.source import HistoryFlags
from muster_cli.history.source import find as find_history

# -3:KIND is a value, not the beginning of a flag.
NodeChanges = Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)]
_COMMON = SettingsFlags()
_HISTORY_FLAGS = HistoryFlags()


def simulate(
    trace: str,
    *,
    config: list[Path] | None = None,
    nodes: NodeChanges = None,
    seeds: numbers.Seeds = 1,
    speed: numbers.Speed = 1.0,
    declare: numbers.Times = 0.0,
    users: numbers.Users = 0,
    part: numbers.Fraction = 1.0,
    tick_s: numbers.TickS = 0.0,
    until_s: numbers.UntilS = None,
    processes: numbers.Processes = 0,
    keep: Path | None = None,
    search: str = "",
    goal: str = "",
    json: ReportFile = None,
    html: Path | None = None,
) -> int:
    """Plays a trace through the scheduler's core in virtual time, under several configurations side by side.

    Nothing needs to run. The workload's own configuration comes first, then each --config; each --nodes is played with
    each of them (docs/what-if.md).

    :param trace: directory with nodes.csv.gz and pods.csv.gz, a file of the Standard Workload Format (.swf, .swf.gz),
        or generate:tasks=10000,nodes=100,load=0.9.
    :param config: another queue configuration (YAML); may be given several times.
    :param nodes: other machines: +20:KIND or -3:KIND; may be given several times.
    :param seeds: of a generated workload; figures then have an interval.
    :param speed: so many times as dense do tasks arrive.
    :param declare: so many times their run time, rounded up to a round time, do tasks declare as execution time-out,
        for backfill; 0: nothing.
    :param users: so many users share the tasks, the user of rank k a part like 1 / k [as the trace says].
    :param part: of the machines, taken evenly: 0.1 keeps every tenth.
    :param tick_s: handle together what happens within so many seconds; larger is faster and coarser.
    :param until_s: the last moment [when all tasks have ended].
    :param processes: at the same time [one for each core].
    :param keep: folder for finished plays: the same command goes on there after an interruption.
    :param search: instead of a comparison: how many more machines of this kind reach --goal, with the last --config.
    :param goal: "p95 wait of root.ml < 10m"; p50 or max; of a queue, "of user NAME", "of priority N", or of all tasks.
    :param json: also write the figures there, as JSON; "-": to standard output, instead of the table.
    :param html: also write a report there, one HTML file.
    """
    from muster_whatif.workload_source import WorkloadSource

    from muster_cli import simulate as simulating

    if bool(search) != bool(goal):
        raise UsageError("--search and --goal belong together")
    source = WorkloadSource(trace, speed=speed, declare=declare, users=users, part=part)
    if search:
        chosen = config[-1] if config else None
        return simulating.search(
            source, chosen, search, goal, tick_s=tick_s, until_s=until_s, keep=keep, json_file=json
        )
    return simulating.simulate(
        source,
        config or [],
        nodes or [],
        seeds=seeds,
        tick_s=tick_s,
        until_s=until_s,
        processes=processes,
        keep=keep,
        json_file=json,
        html_file=html,
    )


def what_if(
    *,
    as_it_was: Path | None = None,
    config: list[Path] | None = None,
    nodes: NodeChanges = None,
    tick_s: numbers.TickS = 0.0,
    save: Path | None = None,
    json: ReportFile = None,
    html: Path | None = None,
    flags: HistoryFlags = _HISTORY_FLAGS,
    common: SettingsFlags = _COMMON,
) -> int:
    """Plays what really happened again, under another configuration or with other machines (docs/what-if.md).

    :param as_it_was: the queue configuration that was in force; it is played first, and held against what happened.
    :param config: another queue configuration (YAML); may be given several times.
    :param nodes: other machines: +20:size-1 or -3:size-1; may be given several times.
    :param tick_s: handle together what happens within so many seconds.
    :param save: also keep the workload in this file, NAME.workload.json, for `muster simulate`.
    :param json: also write the figures there, as JSON; "-": to standard output, instead of the table.
    :param html: also write a report there, one HTML file.
    """
    from muster_cli.history.what_if import what_if as played

    source = find_history(flags, common.settings, common.set)
    return played(
        source, flags.rm, as_it_was, config or [], nodes or [], tick_s=tick_s, save=save, json_file=json, html_file=html
    )
