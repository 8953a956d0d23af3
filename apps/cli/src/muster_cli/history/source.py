"""Finds the place of a history from flags and settings, before anything is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter
from muster_runtime.terminal import print_lines

from muster_cli import numbers
from muster_cli.errors import UsageError
from muster_cli.flags import DEFAULT_HTTP, HTTP_VARIABLE
from muster_cli.history import local_instance

if TYPE_CHECKING:  # loaded only for this command
    from muster_event_publisher.history.file_stores import FileStore

    from muster_cli.settings import MusterSettings

DEFAULT_DATA_DIR = Path("muster-data")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class HistoryFlags:
    """The history and the RM to read."""

    data_dir: Path | None = None
    """Directory of `muster up`: its history and the newer events of its log [from the settings, else muster-data,
    else that of the `muster up` at MUSTER_HTTP]."""
    history: str = ""
    """Instead: a folder of Parquet files, or s3://bucket/prefix?endpoint=…"""
    http: str = ""
    """REST front of a running Muster, for events that are not exported yet."""
    rm: str = ""
    """Only this RM [all RMs]."""
    timeout_s: numbers.TimeoutS = 30.0
    """How long to wait for each answer of --http."""


@dataclass(frozen=True, slots=True)
class HistoryLocation:
    """The places to read.

    :ivar file_store: of the Parquet files; None: there is none.
    :ivar log_file: the embedded log, which may have newer events; None: not known, or no such log.
    :ivar events_topic: on that log.
    :ivar http: URL of a running Muster; "": none.
    :ivar timeout_s: of its answers.
    """

    file_store: FileStore | None
    log_file: Path | None
    events_topic: str
    http: str
    timeout_s: float = 30.0

    @property
    def display_name(self) -> str:
        """The places, for messages."""
        places = [self.file_store.display_name] if self.file_store is not None else []
        places += [str(self.log_file)] if self.log_file is not None else []
        places += [self.http] if self.http else []
        return ", ".join(places)


def find(flags: HistoryFlags, settings_file: Path | None, assignments: Sequence[str]) -> HistoryLocation:
    """Returns the places of the history. Raises UsageError, with advice."""
    from muster_event_publisher.errors import PublisherError
    from muster_event_publisher.history.file_stores import store_from_location

    from muster_cli.settings import embedded_defaults, load

    http = _checked_http(flags.http)
    if flags.history:
        if flags.data_dir is not None:
            raise UsageError("--data-dir and --history both name the history; expected one of them")
        try:
            return HistoryLocation(store_from_location(flags.history), None, "", http, flags.timeout_s)
        except ValueError as error:
            raise UsageError(f"--history: {error}") from error
    data_dir = flags.data_dir
    if data_dir is None and DEFAULT_DATA_DIR.is_dir():
        data_dir = DEFAULT_DATA_DIR
    if flags.data_dir is not None and not flags.data_dir.is_dir():
        raise UsageError(f"--data-dir {flags.data_dir}: the directory does not exist")
    resolved = load(settings_file, assignments, defaults=embedded_defaults(data_dir) if data_dir is not None else None)
    settings = resolved.values
    try:
        store = _parquet_store(settings)
    except PublisherError as error:
        raise UsageError(str(error)) from error
    log_file = settings.log.sqlite_path if settings.log.backend == "sqlite" else None
    if log_file is not None and not log_file.is_file():
        log_file = None
    if store is None and log_file is None and not http:
        return find(replace(flags, data_dir=_running_data_dir()), settings_file, assignments)
    return HistoryLocation(store, log_file, settings.log.topics().events, http, flags.timeout_s)


def _running_data_dir() -> Path:
    """Returns the data directory of the Muster that client commands reach, if it runs here. Raises UsageError."""
    address = os.environ.get(HTTP_VARIABLE, DEFAULT_HTTP)
    usual = DEFAULT_HTTP.partition("://")[2]
    data_dir = local_instance.data_dir_of(address.rpartition("://")[2].rstrip("/"), usual)
    if data_dir is None:
        raise UsageError(
            "there is nothing to read: expected --data-dir (of `muster up`), --history (Parquet files) or --http"
        )
    print_lines(f"muster: this is the history of the Muster that runs in {data_dir}", error=True)
    return data_dir


def _parquet_store(settings: MusterSettings) -> FileStore | None:
    """Returns the place of the first Parquet store in the settings."""
    from muster_event_publisher.history.file_stores import store_from_location
    from muster_event_publisher.history.registry import configured_stores
    from pydantic import SecretStr

    for name, (kind, options) in configured_stores(settings.publisher).items():
        if kind == "parquet":
            keys = [options.get(key) for key in ("access_key_id", "secret_access_key")]
            key_id, secret = (SecretStr(key) if isinstance(key, str) else None for key in keys)
            try:
                return store_from_location(str(options.get("location", "")), key_id, secret)
            except ValueError as error:
                raise UsageError(f"publisher.sinks.{name}.location: {error}") from error
    return None


def _checked_http(address: str) -> str:
    if not address:
        return ""
    url = address if "://" in address else f"http://{address}"
    if not url.startswith(("http://", "https://")) or not url.partition("://")[2]:
        raise UsageError(f"--http {address!r}: expected host:port or http://host:port")
    return url.rstrip("/")
