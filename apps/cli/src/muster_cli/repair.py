"""``muster repair``: goes on without the parts of an embedded log that are damaged or missing (docs/backup.md).

Each part has a word, which is made of what is wrong. Only when all words are accepted, the log is written anew without
these parts. The old files are moved aside, and nothing of them is deleted.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from muster_bus.backends.breaks import Break, BreakKind
from muster_bus.backends.sqlite_backup import verify_database
from muster_bus.backends.sqlite_breaks import check, check_side_files
from muster_bus.backends.sqlite_mark import mark_path, read_mark, write_mark
from muster_bus.backends.sqlite_read_only import open_read_only
from muster_bus.backends.sqlite_repair import repair_log
from muster_bus.errors import LogError
from muster_runtime import durable
from muster_runtime.terminal import print_lines

from muster_cli.backup import LOG, SESSIONS, data_of, is_on_kafka, locked, move_aside
from muster_cli.errors import CommandError


def repair(data_dir: Path | None, accept: Sequence[str], file: Path | None, assignments: Sequence[str]) -> int:
    """Lists what is damaged, and goes on without it if all is accepted. Returns the exit code."""
    if data_dir is None and is_on_kafka(file, assignments):
        from muster_cli import kafka_log

        return kafka_log.repair(accept, file, assignments)
    data = data_of(data_dir, file, assignments)
    with locked(data):
        breaks = {break_.word: break_ for break_ in _breaks(data / LOG)}
        if not breaks:
            print_lines(f"{data}: whole; there is nothing to repair")
            return 0
        missing = [word for word in breaks if word not in accept]
        if missing:
            for word, break_ in breaks.items():
                print_lines(f"{word}  {break_}")
            words = " ".join(f"--accept {word}" for word in breaks)
            raise CommandError(
                f"{data}: {len(breaks)} parts are damaged or missing. Nothing was changed. Put whole files back, or "
                f"restore a backup. To go on without these parts: muster repair --data-dir {data} {words}"
            )
        _replace_log(data, list(breaks.values()))
    return 0


def _breaks(path: Path) -> list[Break]:
    try:
        with contextlib.closing(open_read_only(path)) as connection:
            breaks = check_side_files(connection, path) + check(connection, whole=True).breaks
    except (sqlite3.Error, OSError) as error:
        raise CommandError(f"{path} cannot be read: {error}. Restore a backup (docs/backup.md)") from error
    if not any(break_.kind is BreakKind.FILE for break_ in breaks):
        breaks += [Break(BreakKind.FILE, "", 0, 0, 0, problem) for problem in verify_database(path)]
    return breaks


def _replace_log(data: Path, accepted: Sequence[Break]) -> None:
    new = data / f"{LOG}.repairing"
    try:
        for path in data.glob(f"{new.name}*"):  # an interrupted repair's
            path.unlink()
        repaired = repair_log(data / LOG, new, accepted, round(time.time() * 1000))
        new.chmod(0o600)
        durable.sync(new)
        clock = read_mark(data / LOG).clock
        keep = [new, *([] if repaired.ends_earlier else data.glob(f"{SESSIONS}*"))]
        move_aside(data, replace=True, keep=keep)
        story = f"the log goes on without {len(accepted)} parts that were damaged or missing: {accepted[0]}"
        write_mark(data / LOG, repaired.mark, story, clock)
        new.replace(data / LOG)
        durable.sync(data)
    except (LogError, OSError) as error:
        raise CommandError(f"not repaired, nothing was changed: {error}") from error
    for gap in repaired.gaps:
        print_lines(f"{mark_path(data / LOG).name}: {gap}")
    print_lines(
        f"{data}: repaired; {repaired.mark.records} records were ever written; muster verify lists the accepted gaps"
    )
