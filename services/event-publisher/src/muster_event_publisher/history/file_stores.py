"""The places of history files: a folder on this machine, or a prefix in an S3-compatible store.

A file appears as a whole or not at all. On this machine it is written under another name, fsynced and renamed, and its
folder is fsynced. In S3 it is one PUT (a large file goes up in parts and appears with the last one). The calls block: a
sink makes them in a thread of its own, and pyarrow releases the interpreter while it waits.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from muster_runtime.durable import sync
from muster_runtime.private_files import DIRECTORY_MODE, make_private_directory, open_private, tighten
from pydantic import SecretStr

from muster_event_publisher.errors import SinkUnavailable

_WRITING = ".writing"
# The layout of files.py; the folder may have files of others, whose mode is theirs.
_OWN_FILES = ("*/before.json", "*/p*/*")
_S3_OPTIONS = ("endpoint", "region")
_ATTEMPTS = 2


class FileStore(Protocol):
    """Files under relative paths with "/". All methods raise OSError."""

    @property
    def display_name(self) -> str:
        """Its name in messages, without secrets."""
        ...

    @property
    def locks(self) -> bool:
        """Whether :meth:`lock` keeps other processes away."""
        ...

    def start(self, sink: str, alone: Callable[[], None]) -> None:
        """Prepares the place for writing; called again after an error.

        :param alone: called if no other process writes there. Raises SinkUnavailable when an older version, which
            shares with nobody, does.
        """
        ...

    def lock(self, sink: str, partition: int) -> None:
        """Keeps other processes from writing a partition; holding it again does nothing. Raises SinkUnavailable when
        another process holds it.
        """
        ...

    def unlock(self, partition: int) -> None:
        """Ends :meth:`lock`."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder, sorted; none when it does not exist."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in a folder, sorted."""
        ...

    def write(self, path: str, parts: Sequence[Any]) -> None:
        """Writes (or replaces) a file: durable when this returns, and visible only as a whole.

        :param parts: buffers, one after the other.
        """
        ...

    def get(self, path: str) -> bytes: ...

    def open(self, path: str) -> Any:
        """A pyarrow file to read from any position."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file, if it exists."""
        ...

    def close(self) -> None: ...


def store_from_location(
    location: str, access_key_id: SecretStr | None = None, secret_access_key: SecretStr | None = None
) -> FileStore:
    """The place that a setting names: a folder, or ``s3://bucket/prefix?endpoint=http://host:port&region=R``.

    :param access_key_id: of S3; without it AWS_ACCESS_KEY_ID and the other ways of AWS's libraries.
    :raises ValueError: one sentence, without anything secret.
    """
    if "://" not in location:
        if not location:
            raise ValueError("expected a folder or s3://bucket/prefix")
        return LocalFileStore(Path(location))
    if "@" in unquote(location):
        raise ValueError(
            "credentials do not belong into an address, nor does any '@': expected AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment, or the settings access_key_id and secret_access_key"
        )
    parts = urlsplit(location)
    if parts.scheme != "s3" or not parts.netloc:
        raise ValueError(f"{parts.scheme}://{parts.netloc}: expected a folder or s3://bucket/prefix")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in _S3_OPTIONS:
            raise ValueError(f"unknown option {name!r} in the address: expected {' or '.join(_S3_OPTIONS)}")
    if (access_key_id is None) != (secret_access_key is None):
        raise ValueError("access_key_id and secret_access_key: expected both or none")
    endpoint = urlsplit(options.get("endpoint", ""))
    if options.get("endpoint") and (endpoint.scheme not in ("http", "https") or not endpoint.netloc):
        raise ValueError(f"endpoint {options['endpoint']!r}: expected http://host:port or https://host:port")
    return S3FileStore(
        parts.netloc, parts.path.strip("/"), endpoint.scheme or "https", endpoint.netloc, options.get("region", ""),
        access_key_id, secret_access_key,
    )  # fmt: skip


class LocalFileStore:
    """See :class:`Place`."""

    locks = True

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock_file: IO[bytes] | None = None
        self._lock_files: dict[int, IO[bytes]] = {}

    @property
    def display_name(self) -> str:
        return str(self._root)

    def start(self, sink: str, alone: Callable[[], None]) -> None:
        make_private_directory(self._root)
        if self._lock_file is not None:
            return
        lock_file = open_private(self._root / ".lock", append=True)
        try:
            if _locked(lock_file, fcntl.LOCK_EX):
                for pattern in (f".*{_WRITING}", f"*/*/.*{_WRITING}"):
                    for path in self._root.glob(pattern):
                        path.unlink()
                tighten(path for pattern in _OWN_FILES for path in self._root.glob(pattern))
                alone()
            # Publishers share this lock; older versions do not share it.
            if not _locked(lock_file, fcntl.LOCK_SH):
                raise SinkUnavailable(sink, f"another publisher writes to {self._root}")
        except BaseException:
            lock_file.close()
            raise
        self._lock_file = lock_file

    def lock(self, sink: str, partition: int) -> None:
        if partition in self._lock_files:
            return
        lock_file = open_private(self._root / f".lock-p{partition}", append=True)
        if not _locked(lock_file, fcntl.LOCK_EX):
            lock_file.close()
            raise SinkUnavailable(sink, f"another publisher writes partition {partition} to {self._root}")
        self._lock_files[partition] = lock_file
        for path in self._root.glob(f"*/p{partition}/.*{_WRITING}"):
            path.unlink()

    def unlock(self, partition: int) -> None:
        lock_file = self._lock_files.pop(partition, None)
        if lock_file is not None:
            lock_file.close()

    def names(self, folder: str) -> list[str]:
        return self._listed(folder, files=True)

    def folders(self, folder: str) -> list[str]:
        return self._listed(folder, files=False)

    def write(self, path: str, parts: Sequence[Any]) -> None:
        whole = self._root / path
        self._make(whole.parent)
        beside = whole.with_name(f".{whole.name}{_WRITING}")
        with open_private(beside) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(whole)
        sync(whole.parent)

    def get(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def open(self, path: str) -> Any:
        import pyarrow as pa

        return pa.OSFile(str(self._root / path))

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def close(self) -> None:
        for partition in list(self._lock_files):
            self.unlock(partition)
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def _listed(self, folder: str, *, files: bool) -> list[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_file() == files)
        except FileNotFoundError:
            return []

    def _make(self, folder: Path) -> None:
        """Makes a folder and those above it, each durable."""
        if folder.exists():
            return
        self._make(folder.parent)
        folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        sync(folder.parent)


def _locked(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class S3FileStore:
    """See :class:`Place`. There are no locks: two publishers may write to a prefix if they share the partitions out.

    :ivar root: "bucket/prefix", within :attr:`filesystem`.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        scheme: str,
        endpoint: str,
        region: str,
        access_key_id: SecretStr | None,
        secret_access_key: SecretStr | None,
    ) -> None:
        self.root = f"{bucket}/{prefix}" if prefix else bucket
        self._scheme, self._endpoint, self._region = scheme, endpoint, region
        self._access_key_id, self._secret_access_key = access_key_id, secret_access_key
        self._cached_fs: Any = None

    @property
    def display_name(self) -> str:
        return f"s3://{self.root}"

    locks = False

    def start(self, sink: str, alone: Callable[[], None]) -> None:
        # Any request: it finds a wrong address or key now instead of at the first file.
        self.folders("")
        alone()

    def lock(self, sink: str, partition: int) -> None:
        """There is no lock to take."""

    def unlock(self, partition: int) -> None:
        """There is none to give back."""

    def names(self, folder: str) -> list[str]:
        return self._listed(folder, "File")

    def folders(self, folder: str) -> list[str]:
        return self._listed(folder, "Directory")

    def write(self, path: str, parts: Sequence[Any]) -> None:
        # (Without this, Arrow would compress a file named .zst again.)
        stream = self.filesystem.open_output_stream(f"{self.root}/{path}", compression=None)
        try:
            for part in parts:
                stream.write(part)
            stream.close()
        except BaseException:
            # A broken upload in parts is aborted when the stream is dropped: it must not leave half a file.
            del stream
            with suppress(OSError):
                self.remove(path)
            raise

    def get(self, path: str) -> bytes:
        with self.filesystem.open_input_stream(f"{self.root}/{path}", compression=None) as stream:
            data: bytes = stream.read()
        return data

    def open(self, path: str) -> Any:
        return self.filesystem.open_input_file(f"{self.root}/{path}")

    def remove(self, path: str) -> None:
        try:
            self.filesystem.delete_file(f"{self.root}/{path}")
        except FileNotFoundError:
            return

    def close(self) -> None:
        self._cached_fs = None

    def _listed(self, folder: str, kind: str) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        under = f"{self.root}/{folder}" if folder else self.root
        infos = self.filesystem.get_file_info(FileSelector(under, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == getattr(FileType, kind))

    @property
    def filesystem(self) -> Any:
        """The pyarrow file system; made when it is first asked for."""
        if self._cached_fs is None:
            from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

            key, secret = self._access_key_id, self._secret_access_key
            self._cached_fs = S3FileSystem(
                access_key=key.get_secret_value() if key else None,
                secret_key=secret.get_secret_value() if secret else None,
                region=self._region or None,
                scheme=self._scheme,
                endpoint_override=self._endpoint or None,
                connect_timeout=5.0,
                request_timeout=30.0,
                allow_delayed_open=True,  # small files: one PUT instead of an upload in parts
                background_writes=False,
                retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            )
        return self._cached_fs
