"""An informer for inventories in files: JSON, NDJSON or YAML (document_parsing.py), one file, or all files of a
directory.

The informer checks a file every ``poll_s``. If its stat differs (device, inode, size, times: compared, never ordered),
the informer reads it once it has not changed for ``settle_s``, so that a writer can finish. It finds changes by
comparing content. A writer that renames a finished file over the old one needs no such wait.

============================================  ==================================================================
situation                                     result
============================================  ==================================================================
no file, no right to read it, a hung disk     SourceUnavailable: no object counts as gone
a directory without any such file             the same: an empty mount is no inventory
a file that keeps changing                    the same
unreadable, 0 bytes, too large                SourceSaysNonsense, with the line: nothing of it is taken
``[]``                                        an empty inventory: all objects are gone
a file less in a directory                    its objects are gone
============================================  ==================================================================
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from muster_bus.clock import Clock
from muster_core.external.errors import CursorExpired, SourceSaysNonsense, SourceUnavailable
from pydantic import Field, model_validator

from muster_informers.contract import Delta, InformerContext, Listing, Options
from muster_informers.sources.document_parsing import Format, read_documents
from muster_informers.sources.listing_diff import (
    Contents,
    DocumentDigest,
    contents_of,
    cursor_of,
    differences,
    digest_of,
)
from muster_informers.sources.options import Bytes, InformerOptions, Seconds, SecondsOrNone, options_as

T = TypeVar("T")

_FORMATS: dict[str, Format] = {
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".yaml": "yaml",
    ".yml": "yaml",
}
# How often a file that is being written is checked before the informer waits for the next poll.
_ATTEMPTS_MAX = 20


class FileSourceOptions(InformerOptions):
    """The options of an informer of the kind ``file``."""

    path: str = Field("", description="the file; relative to the settings' directory")
    directory: str = Field("", description="or a directory; all its files count together, except hidden ones")
    pattern: str = Field(
        "", description="with `directory`: only files with such names, as `*.yaml`; default: all known endings"
    )
    format: Literal["auto", "json", "ndjson", "yaml"] = Field(
        "auto", description="the files' format; auto: by their endings"
    )
    poll_s: Seconds = Field(1.0, description="time between two looks for changes")
    settle_s: SecondsOrNone = Field(0.2, description="a change counts once the file has not changed for so long")
    reread_s: Seconds = Field(30.0, description="time after which the file is read again even if it looks unchanged")
    timeout_s: Seconds = Field(60.0, description="longest wait for the disk and for parsing")
    max_bytes: Bytes = Field(64 << 20, description="largest size of all files together")

    @model_validator(mode="after")
    def _check_location(self) -> FileSourceOptions:
        if bool(self.path) == bool(self.directory):
            raise ValueError("expected either path or directory")
        if self.pattern and not self.directory:
            raise ValueError("pattern is for a directory; expected directory in place of path")
        if "/" in self.pattern:
            raise ValueError(f"pattern {self.pattern!r}: expected the pattern of a file's name, without /")
        return self


def make_informer(options: Options, context: InformerContext) -> FileSource:
    """The factory of ``muster.informers``."""
    return FileSource(options_as(FileSourceOptions, options, context), context)


class _Stat(NamedTuple):
    """Distinguishes the states of a file."""

    path: Path
    device: int
    inode: int
    size: int
    changed_ns: tuple[int, int]


class _FileChanged(Exception):
    """The file changed while it was being read."""


class _FileRead(NamedTuple):
    documents: Sequence[DocumentDigest]
    contents: Contents
    cursor: str


class FileSource:
    """See :class:`muster_informers.contract.ListWatch`."""

    def __init__(self, options: FileSourceOptions, context: InformerContext) -> None:
        self._options = options
        self._location = Path(context.base) / (options.path or options.directory)
        self._clock: Clock = context.clock
        self._stats: Sequence[_Stat] = ()  # of the last read
        self._read_s = 0.0  # time of the last read
        self._contents: Contents = {}
        self._cursor = ""
        self._in_thread: asyncio.Future[object] | None = None

    async def list(self) -> Listing:
        read = await self._read_when_stable()
        self._contents, self._cursor = read.contents, read.cursor
        return Listing([digest.document for digest in read.documents], read.cursor)

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        if not cursor or cursor != self._cursor:
            raise CursorExpired(f"{self._location}: the last reported content is not known any more")
        while True:
            yield await self._changes()
            await asyncio.sleep(self._options.poll_s)

    async def close(self) -> None:
        """No file stays open; a thread that waits for a hung disk ends with the disk's answer."""

    async def _changes(self) -> Sequence[Delta]:
        """1 check the files, 2 read those that are settled, 3 compare. No change counts before all steps have
        succeeded.
        """
        stats = await self._threaded(self._read_stats)  # 1
        aged = self._clock.monotonic() - self._read_s >= self._options.reread_s
        if stats == self._stats and not aged:
            return ()
        read = await self._read_when_stable()  # 2
        if read.cursor == self._cursor:
            return ()
        before, self._cursor = self._cursor, ""  # unless the rest succeeds, only a listing helps
        deltas = differences(self._contents, read.contents, read.documents, (before, read.cursor))  # 3
        self._contents, self._cursor = read.contents, read.cursor
        return deltas

    async def _read_when_stable(self) -> _FileRead:
        """Reads files that have not changed for ``settle_s``."""
        stats = await self._threaded(self._read_stats)
        for _ in range(_ATTEMPTS_MAX):
            await asyncio.sleep(self._options.settle_s)
            before, stats = stats, await self._threaded(self._read_stats)
            if stats != before:
                continue
            self._stats = ()
            with suppress(_FileChanged):
                read = await self._threaded(partial(self._read, before))
                self._stats, self._read_s = before, self._clock.monotonic()
                return read
        raise SourceUnavailable(f"{self._location}: keeps changing for {self._options.settle_s:g} s")

    async def _threaded(self, work: Callable[[], T]) -> T:
        """Runs work in a thread, because disks can hang and texts are long. There is one thread at a time, even if it
        hangs.

        :raises SourceUnavailable: the disk reports an error or does not answer.
        """
        if self._in_thread is not None and not self._in_thread.done():
            await asyncio.wait({self._in_thread}, timeout=self._options.timeout_s)
            if not self._in_thread.done():
                raise SourceUnavailable(f"{self._location}: the disk has not answered yet")
        running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(_retrieve)
        self._in_thread = running  # type: ignore[assignment]
        try:
            async with asyncio.timeout(self._options.timeout_s):
                return await asyncio.shield(running)
        except TimeoutError:
            raise SourceUnavailable(f"{self._location}: no answer in {self._options.timeout_s:g} s") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise SourceUnavailable(f"{error.filename or self._location}: {reason}") from error

    # ---- in a thread ------------------------------------------------------------------------------------------------

    def _read_stats(self) -> Sequence[_Stat]:
        if self._options.path:
            return [_stat(self._location)]
        stats = []
        for path in sorted(self._location.iterdir()):
            if path.name.startswith(".") or not self._matches(path):
                continue
            with suppress(FileNotFoundError):  # gone since then, like a temporary file
                if stat.S_ISREG(path.stat().st_mode):
                    stats.append(_stat(path))
        if not stats:
            raise SourceUnavailable(
                f"{self._location}: none of its files is an inventory; expected at least one ([]: no objects)"
            )
        return stats

    def _matches(self, path: Path) -> bool:
        pattern = self._options.pattern
        return path.match(pattern) if pattern else path.suffix.lower() in _FORMATS

    def _read(self, stats: Sequence[_Stat]) -> _FileRead:
        """Reads files whose stats are equal to ``stats`` before and after. Raises _FileChanged."""
        remaining_bytes = self._options.max_bytes
        texts = []
        for before in stats:
            # A pipe in the file's place must not block the thread.
            with os.fdopen(os.open(before.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                data = file.read(remaining_bytes + 1)
                if _as_stat(before.path, os.fstat(file.fileno())) != before:
                    raise _FileChanged
            remaining_bytes -= len(data)
            if remaining_bytes < 0:
                raise SourceSaysNonsense(f"{before.path}: more than {self._options.max_bytes} bytes (max_bytes)")
            texts.append(data)
        if self._read_stats() != stats:
            raise _FileChanged
        documents = [
            digest_of(document)
            for (path, *_), data in zip(stats, texts, strict=True)
            for document in read_documents(data, self._format(path), str(path))
        ]
        contents = contents_of(documents)
        return _FileRead(documents, contents, cursor_of(contents))

    def _format(self, path: Path) -> Format:
        form = self._options.format
        return _FORMATS.get(path.suffix.lower(), "yaml") if form == "auto" else form


def _stat(path: Path) -> _Stat:
    stat_result = path.stat()
    if not stat.S_ISREG(stat_result.st_mode):
        raise SourceUnavailable(f"{path}: not a file")
    return _as_stat(path, stat_result)


def _as_stat(path: Path, stat_result: os.stat_result) -> _Stat:
    return _Stat(
        path,
        stat_result.st_dev,
        stat_result.st_ino,
        stat_result.st_size,
        (stat_result.st_mtime_ns, stat_result.st_ctime_ns),
    )


def _retrieve(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()
