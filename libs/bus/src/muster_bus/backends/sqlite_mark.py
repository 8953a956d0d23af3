"""The side file of an embedded log: ``log.db.mark`` holds the log's last known mark (``log_mark.py``).

The file's content is never ahead of what is durable in the log: it is written after the log's own fsync, by
maintenance, at intervals, and only when records came. So a commit costs nothing more. Whoever deletes the log's
write-ahead log, or puts another ``log.db`` in its place, is noticed at the next start.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import structlog
from muster_runtime import durable

from muster_bus.clock import NO_ANCHOR, STEP_NS, Anchor, SystemClock
from muster_bus.log_mark import LogMark

log = structlog.get_logger(__name__)


def mark_path(log_path: Path) -> Path:
    """Returns the side file of a log's file."""
    return Path(f"{log_path}.mark")


class SideFile(NamedTuple):
    """Content of a side file.

    :param mark: None: there is no side file, or none that can be read.
    :param loss: an accepted loss that the RMs' histories do not know yet, in a sentence; "": none.
    :param clock: the anchor of the process that had the log.
    :param recorded_ns: the recorded time when it was written; 0: not known.
    """

    mark: LogMark | None
    loss: str = ""
    clock: Anchor = NO_ANCHOR
    recorded_ns: int = 0


def read_mark(log_path: Path) -> SideFile:
    """Reads the side file. Raises OSError."""
    path = mark_path(log_path)
    try:
        text = path.read_text()
        mark, content = LogMark.from_json(text), json.loads(text)
        offset_ns, boot_id, booted_ns = content.get("clock", NO_ANCHOR)
        anchor = Anchor(int(offset_ns), str(boot_id), int(booted_ns))
        return SideFile(mark, str(content.get("loss", "")), anchor, int(content.get("recorded_ns", 0)))
    except FileNotFoundError:
        return SideFile(None)
    except (ValueError, TypeError) as error:
        log.warning("log.mark_unreadable", path=str(path), error=str(error))
        return SideFile(None)


def write_mark(log_path: Path, mark: LogMark, loss: str = "", clock: Anchor = NO_ANCHOR, recorded_ns: int = 0) -> None:
    """Replaces the side file. Durable, and whole or not at all. Raises OSError."""
    path = mark_path(log_path)
    content = json.loads(mark.to_json()) | ({"loss": loss} if loss else {})
    content |= {"clock": clock} if any(clock) else {}
    content |= {"recorded_ns": recorded_ns} if recorded_ns else {}
    durable.replace(path, json.dumps(content).encode())


class MarkWriter:
    """Keeps the side file of an open log. Any thread may call it.

    :param log_id: the log's identity.
    :param written: what the side file has.
    :param durable_heads: returns where what is durable ends, and the digest there.
    :param clock: its anchor and time are written, so that the next process continues recorded time.
    """

    def __init__(
        self,
        path: Path,
        log_id: str,
        written: SideFile,
        durable_heads: Callable[[], Mapping[str, tuple[int, int]]],
        clock: SystemClock | None = None,
    ) -> None:
        self._path, self._log_id = path, log_id
        self._clock, self._anchored_ns = clock, written.clock.offset_ns
        self._durable_heads = durable_heads
        self._written = written.mark if written.mark is not None and written.mark.log_id == log_id else None
        self._loss = written.loss
        self._failed = False
        self._one_at_a_time = threading.Lock()

    def mark(self) -> LogMark:
        """Returns the mark of what is durable now."""
        heads = dict(self._durable_heads())
        if self._written is not None:  # with synchronous=normal, this process may know less than the one before it
            for partition, end in self._written.ends.items():
                if end > heads.get(partition, (0, 0))[0]:
                    heads[partition] = end, self._written.heads.get(partition, 0)
        ends = {partition: end for partition, (end, _) in heads.items()}
        return LogMark(self._log_id, ends, {partition: head for partition, (_, head) in heads.items()})

    def mark_loss_reported(self) -> None:
        """The RMs' histories know the accepted loss."""
        with self._one_at_a_time:
            self._loss, mark = "", self.mark()
            self._write(mark)

    def store(self) -> None:
        """Writes the side file if records came. A full disk leaves an older mark, which is as true."""
        with self._one_at_a_time:
            mark = self.mark()
            offset_ns = self._clock.anchor().offset_ns if self._clock is not None else self._anchored_ns
            stepped = abs(offset_ns - self._anchored_ns) > STEP_NS
            if self._written is None or mark.records != self._written.records or stepped:
                self._write(mark)

    def _write(self, mark: LogMark) -> None:
        anchor = self._clock.anchor() if self._clock is not None else NO_ANCHOR
        recorded_ns = self._clock.now_ns() if self._clock is not None else 0
        try:
            write_mark(self._path, mark, self._loss, anchor, recorded_ns)
        except OSError as error:
            if not self._failed:
                log.warning("log.mark_not_written", path=str(mark_path(self._path)), error=error.strerror)
            self._failed = True
            return
        self._written, self._anchored_ns, self._failed = mark, anchor.offset_ns, False
