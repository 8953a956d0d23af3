"""Finds the available stores, and makes those that the settings name.

A store is an entry point of the group ``muster.event_sinks``: its name is the store's kind, its object a factory
``make(options, context) -> (sink, flush policy)``. Muster's own are registered in the same way (pyproject.toml); any
installed package can add more. A store that can be read by id also registers a reader of the same kind in
``muster.history_readers``: ``make(options, context) -> HistoryReader``.

Settings: ``publisher.sinks.NAME`` holds a store's options; ``kind`` is among them if it differs from the name, so that
one kind can serve several targets. The older ``parquet_dir`` and ``postgres_dsn`` stand for ``sinks.parquet`` and
``sinks.postgres``. Only the factories of these stores are imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar, cast

from muster_bus.clock import Clock
from muster_bus.topics import Topics
from muster_runtime.optional_packages import with_install_hint
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from muster_event_publisher.errors import InvalidSinkSettings
from muster_event_publisher.history.file_stores import FileStore, store_from_location
from muster_event_publisher.history.reader import HistoryReader
from muster_event_publisher.history.sink import FlushPolicy, Sink
from muster_event_publisher.settings import PublisherSettings

SINKS_GROUP = "muster.event_sinks"
READERS_GROUP = "muster.history_readers"

SinkPlan = tuple[Sink, FlushPolicy]
Options = Mapping[str, object]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The context of a factory.

    :param name: the store's name in the settings, for logs and metrics; the sink's ``name``.
    :param source: the exported topic; with it a target distinguishes the progress of several Musters.
    :param settings_prefix: of its options' names in the settings, for messages.
    """

    name: str
    source: str
    partitions: int
    clock: Clock
    settings_prefix: str = ""


class SinkFactory(Protocol):
    """Makes a sink. Connects to nothing yet.

    :param options: as in the settings. Texts may be secrets: they must not get into a log or an error.
    :raises InvalidSinkSettings: the options cannot be used.
    """

    def __call__(self, options: Options, context: SinkContext) -> SinkPlan: ...


class ReaderFactory(Protocol):
    """Makes the reader of the events that the sink of the same kind and options writes. It does not connect yet."""

    def __call__(self, options: Options, context: SinkContext) -> HistoryReader: ...


class FileSinkOptions(BaseModel):
    """Options of stores that write files."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    location: str = Field(description="a folder, or s3://bucket/prefix?endpoint=http://host:port&region=R")
    roll_records: int = Field(100_000, ge=1, description="a file is written when so many events wait")
    roll_bytes: int = Field(64 * 1024 * 1024, ge=1, description="or so many bytes of serialised events")
    roll_s: float = Field(60.0, gt=0, description="or when the oldest has waited so long")
    access_key_id: SecretStr | None = Field(None, description="of S3; none: as AWS's libraries find it")
    secret_access_key: SecretStr | None = Field(None, description="of S3; none: as AWS's libraries find it")

    def file_store(self) -> FileStore:
        """The place of the files. Raises ValueError."""
        return store_from_location(self.location, self.access_key_id, self.secret_access_key)

    def policy(self) -> FlushPolicy:
        return FlushPolicy(self.roll_records, self.roll_bytes, self.roll_s)


def options_as(model: type[M], options: Options, context: SinkContext) -> M:
    """The options as a model. Raises InvalidSinkSettings with one sentence for each problem, without values."""
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        option_names = ", ".join(field.alias or name for name, field in model.model_fields.items())
        raise InvalidSinkSettings(
            *(
                f"publisher.sinks.{context.name}.{'.'.join(map(str, problem['loc']))}: {problem['msg']}; "
                f"known options are {option_names}"
                for problem in error.errors(include_input=False, include_url=False)
            )
        ) from None  # pydantic's error holds the values


def sinks_of(
    settings: PublisherSettings, topics: Topics, clock: Clock, points: Iterable[EntryPoint] | None = None
) -> list[SinkPlan]:
    """The sinks in the settings, in their order.

    :param points: the entry points of the group; None: the installed ones.
    :raises InvalidSinkSettings: an unknown kind, a kind that two packages offer, or options that cannot be used.
    """
    stores = configured_stores(settings)
    if not stores and points is None:
        return []
    points_by_kind = _by_kind(SINKS_GROUP, points)
    plans = []
    for name, (kind, options) in stores.items():
        if kind not in points_by_kind:
            raise InvalidSinkSettings(
                f"publisher.sinks.{name}: there is no store of the kind {kind!r}; known are "
                f"{', '.join(sorted(points_by_kind)) or 'none'} (entry points of {SINKS_GROUP})"
            )
        plans.append(cast("SinkPlan", _create(points_by_kind[kind], options, _context(name, settings, topics, clock))))
    return plans


def readers_of(
    settings: PublisherSettings, topics: Topics, clock: Clock, points: Iterable[EntryPoint] | None = None
) -> list[HistoryReader]:
    """The readers of the settings' stores that have one, in the settings' order. Raises InvalidSinkSettings."""
    stores = configured_stores(settings)
    if not stores and points is None:
        return []
    points_by_kind = _by_kind(READERS_GROUP, points)
    return [
        cast("HistoryReader", _create(points_by_kind[kind], options, _context(name, settings, topics, clock)))
        for name, (kind, options) in stores.items()
        if kind in points_by_kind
    ]


def configured_stores(settings: PublisherSettings) -> dict[str, tuple[str, dict[str, object]]]:
    """Name → (kind, options in clear) of each store in the settings. Raises InvalidSinkSettings."""
    stores: dict[str, tuple[str, dict[str, object]]] = {}
    # 1. the flat settings
    if settings.parquet_dir is not None:
        options: dict[str, object] = {
            "location": str(settings.parquet_dir),
            "roll_records": settings.parquet_roll_records,
            "roll_bytes": settings.parquet_roll_bytes,
            "roll_s": settings.parquet_roll_s,
        }
        stores["parquet"] = ("parquet", options)
    if settings.postgres_dsn is not None:
        options = {
            "dsn": settings.postgres_dsn.get_secret_value(),
            "schema": settings.postgres_schema,
            "flush_records": settings.postgres_flush_records,
            "flush_s": settings.postgres_flush_s,
            "transaction_records": settings.postgres_transaction_records,
            "timeout_s": settings.postgres_timeout_s,
            "retention_days": settings.postgres_retention_days,
            "password": _reveal_secret(settings.postgres_password),
            "password_file": settings.postgres_password_file,
            "sslmode": settings.postgres_sslmode,
            "ca_file": settings.postgres_ca_file,
            "client_cert_file": settings.postgres_client_cert_file,
            "client_key_file": settings.postgres_client_key_file,
        }
        stores["postgres"] = ("postgres", options)
    # 2. the tables
    for name, table in settings.sinks.items():
        if name in stores:
            flat = {"parquet": "parquet_dir", "postgres": "postgres_dsn"}[name]
            raise InvalidSinkSettings(
                f"publisher.sinks.{name} and publisher.{flat} both name a store {name!r}; expected one of them "
                f"(another name with kind = {name!r} makes it a second one)"
            )
        options = {key: _reveal_secret(value) for key, value in table.items()}
        kind = options.pop("kind", name)
        if not isinstance(kind, str):
            raise InvalidSinkSettings(f"publisher.sinks.{name}.kind: expected a text")
        stores[name] = (kind, options)
    return stores


def _reveal_secret(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _context(name: str, settings: PublisherSettings, topics: Topics, clock: Clock) -> SinkContext:
    is_table = name in settings.sinks
    prefix = f"publisher.sinks.{name}." if is_table else f"publisher.{name}_"
    return SinkContext(name, topics.events, topics.partitions, clock, prefix)


def _by_kind(group: str, points: Iterable[EntryPoint] | None) -> dict[str, EntryPoint]:
    points_by_kind: dict[str, EntryPoint] = {}
    for point in entry_points(group=group) if points is None else points:
        existing = points_by_kind.setdefault(point.name, point)
        if existing is not point and existing.value != point.value:
            raise InvalidSinkSettings(
                f"two packages offer a store of the kind {point.name!r} in {group}: {_origin(existing)} and "
                f"{_origin(point)}; expected one"
            )
    return points_by_kind


def _origin(point: EntryPoint) -> str:
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"
    return f"{package} ({point.value})"


def _create(point: EntryPoint, options: Options, context: SinkContext) -> Any:
    try:
        return point.load()(options, context)
    except ValueError as error:
        # (A store names its options in full where it was told how.)
        where = "" if context.settings_prefix in str(error) else f"publisher.sinks.{context.name}: "
        raise InvalidSinkSettings(f"{where}{error}") from None
    except (ImportError, AttributeError) as error:
        raise InvalidSinkSettings(
            f"publisher.sinks.{context.name}: the store {_origin(point)} cannot be loaded: "
            f"{with_install_hint(error) if isinstance(error, ImportError) else error}"
        ) from error
