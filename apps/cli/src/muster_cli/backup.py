"""``muster backup``, ``restore`` and ``verify``: copies of an embedded Muster's log and sessions (docs/backup.md).

A backup is a directory with ``log.db``, ``sessions.db`` and ``backup.json``, which names their checksums and the log's
mark. The sessions are copied first: they must never be ahead of the log. A directory gets its name when it is whole.

A restore moves what is there aside and deletes nothing. The new side file comes first: if the restore is interrupted,
Muster does not start with half of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from muster_bus.backends.sqlite_backup import VerificationResult, copy_database, verify_database, verify_log
from muster_bus.backends.sqlite_mark import mark_path, read_mark, write_mark
from muster_bus.backends.sqlite_schema import lock
from muster_bus.errors import LogBehind, LogError, LogUnavailable
from muster_bus.log_mark import LogMark, check
from muster_runtime import durable
from muster_runtime.terminal import print_lines

from muster_cli.errors import CommandError, UsageError
from muster_cli.settings import load

LOG, SESSIONS, MANIFEST = "log.db", "sessions.db", "backup.json"

_KAFKA = (
    "the log is on Kafka (log.backend kafka): Kafka replicates and keeps it. Use replication 3 with "
    "min.insync.replicas 2, and MirrorMaker 2 or your broker's snapshots for copies; Redis needs no backup, because "
    "sessions are read from the log again (docs/backup.md)"
)


def backup(target: Path, data_dir: Path | None, file: Path | None, assignments: Sequence[str]) -> int:
    """Copies log and sessions to a new directory, while Muster works or not. Returns the exit code."""
    data = data_of(data_dir, file, assignments)
    if target.exists():
        raise UsageError(f"{target}: exists already; a backup is a new directory")
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # an interrupted backup's
    try:
        partial.mkdir(mode=0o700, parents=True)
        names = [name for name in (SESSIONS, LOG) if (data / name).exists()]
        for name in names:
            copy_database(data / name, partial / name)
        verified = _require_undamaged(partial / LOG)
        manifest = {
            "muster": version("muster"),
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            "records": verified.records,
            "mark": json.loads(verified.mark.to_json()),
            "files": {name: _checksum(partial / name) for name in names},
        }
        durable.write(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
        durable.sync(partial)
        partial.rename(target)
        durable.sync(target.absolute().parent)
    except (LogError, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CommandError(f"no backup: {_format_error(error)}") from error
    size = sum((target / name).stat().st_size for name in names)
    print_lines(f"{target}: {verified.records} records of the log {verified.mark.log_id[:8]}, {size >> 10} KiB")
    return 0


def restore(source: Path, data_dir: Path | None, replace: bool, file: Path | None, assignments: Sequence[str]) -> int:
    """Puts a backup in a data directory's place. Returns the exit code."""
    data = data_of(data_dir, file, assignments, must_exist=False)
    manifest = _manifest(source)
    problems = _differences(source, manifest) or _require_undamaged(source / LOG).problems
    if problems:
        raise CommandError(f"{source}: is damaged; nothing was changed: {'; '.join(problems)}")
    taken = str(manifest.get("taken", ""))
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(data):
            move_aside(data, replace=replace)
            loss = f"the log was restored from the backup of {taken}; what came later is lost"
            write_mark(data / LOG, LogMark.from_json(json.dumps(manifest["mark"])), loss)
            for name in (SESSIONS, LOG):
                if name in manifest["files"]:
                    _copy(source / name, data / name)
            durable.sync(data)
    except (LogError, OSError, ValueError) as error:
        raise CommandError(f"not restored: {_format_error(error)}") from error
    print_lines(f"{data}: restored from {source}, taken {taken}, {manifest.get('records')} records")
    return 0


def verify(backup_dir: Path | None, data_dir: Path | None, file: Path | None, assignments: Sequence[str]) -> int:
    """Checks a backup, or a data directory, or a log on Kafka, also beside a working Muster. Returns the exit code."""
    if backup_dir is None and data_dir is None and is_on_kafka(file, assignments):
        from muster_cli import kafka_log

        return kafka_log.verify(file, assignments)
    if backup_dir is not None:
        where, problems = backup_dir, _differences(backup_dir, _manifest(backup_dir))
        verified = verify_log(where / LOG)
        problems += _of_sessions(where) + verified.problems
    else:
        where = data_of(data_dir, file, assignments)
        verified = examine(where)
        problems = verified.problems
    if problems:
        raise CommandError("\n".join(problems))
    for gap in verified.gaps:
        print_lines(f"{where}: {gap}")
    but = f", but for {len(verified.gaps)} accepted gaps" if verified.gaps else ""
    print_lines(f"{where}: whole{but}; {verified.records} records of the log {verified.mark.log_id[:8]}")
    return 0


def examine(data: Path) -> VerificationResult:
    """Checks a data directory: the log, the sessions, and that the log has all that its side file knows."""
    # The side file first: the log only grows.
    side = read_mark(data / LOG)
    verified = verify_log(data / LOG)
    problems = _of_sessions(data) + verified.problems
    if not problems:
        try:
            check(str(data / LOG), verified.mark, mark_path(data / LOG).name, side.mark, "")
        except LogBehind as error:
            problems.append(str(error))
    return verified._replace(problems=problems)


def _of_sessions(directory: Path) -> list[str]:
    return verify_database(directory / SESSIONS) if (directory / SESSIONS).exists() else []


def data_of(data_dir: Path | None, file: Path | None, assignments: Sequence[str], *, must_exist: bool = True) -> Path:
    """Returns the data directory that a command is about. Raises UsageError."""
    if data_dir is None:
        if is_on_kafka(file, assignments):
            raise UsageError(_KAFKA)
        raise UsageError("--data-dir: expected the directory of muster up")
    if must_exist and not (data_dir / LOG).is_file():
        raise UsageError(f"--data-dir {data_dir}: has no {LOG}")
    return data_dir


def is_on_kafka(file: Path | None, assignments: Sequence[str]) -> bool:
    """Tells whether the settings name a log on Kafka."""
    return load(file, assignments).values.log.backend == "kafka"


def _require_undamaged(path: Path) -> VerificationResult:
    verified = verify_log(path)
    if verified.problems:
        raise CommandError(f"{path} is damaged: {'; '.join(verified.problems)}")
    return verified


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        names = manifest["files"]
        if not isinstance(manifest["mark"], dict) or LOG not in names or not names.keys() <= {LOG, SESSIONS}:
            raise ValueError
    except OSError as error:
        raise UsageError(f"{directory}: is no backup: {MANIFEST}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{directory}: {MANIFEST} is not of a backup of Muster") from error
    return dict(manifest)


def _differences(directory: Path, manifest: dict[str, Any]) -> list[str]:
    """Compares the files with the manifest's checksums."""
    problems = []
    for name, checksum in manifest["files"].items():
        try:
            if _checksum(directory / name) != checksum:
                problems.append(f"{directory / name}: has another checksum than {MANIFEST} says")
        except OSError as error:
            problems.append(f"{directory / name}: {error.strerror}")
    return problems


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """Keeps Muster from starting on the directory. Raises CommandError if it is running."""
    try:
        lock_file = lock(data / LOG)
    except LogUnavailable as error:
        raise CommandError(f"--data-dir {data}: Muster is running there; stop it first") from error
    with lock_file:
        yield


def move_aside(data: Path, *, replace: bool, keep: Sequence[Path] = ()) -> None:
    """Moves the present files aside, without their locks.

    :param keep: files that stay.
    """
    present = [
        path
        for name in (LOG, SESSIONS)
        for path in data.glob(f"{name}*")
        if path.suffix != ".lock" and path not in keep
    ]
    if not present:
        return
    if not replace:
        raise UsageError(f"--data-dir {data}: has a log or sessions; --replace moves them aside")
    aside = data / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    aside.mkdir(mode=0o700)
    for path in present:
        path.rename(aside / path.name)
    durable.sync(aside)
    durable.sync(data)
    print_lines(f"{aside}: what was there before")


def _copy(source: Path, target: Path) -> None:
    beside = Path(f"{target}.restoring")
    shutil.copyfile(source, beside)
    beside.chmod(0o600)
    durable.sync(beside)
    beside.replace(target)


def _format_error(error: BaseException) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
