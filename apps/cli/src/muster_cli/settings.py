"""All settings of Muster in one model: a section per service, and one for all processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from muster_bus.settings import LogSettings
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.settings import GatewaySettings
from muster_runtime import logs
from muster_runtime.addresses import OptionalListenAddress
from muster_scheduler.settings import SchedulerSettings
from muster_view.settings import ViewSettings
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from muster_cli.settings_loader import Origin, ResolvedSettings, compose, parse_assignment

SETTINGS_VARIABLE = "MUSTER_SETTINGS"

# Defaults of a service in a process of its own: Kafka, and an address for its operator.
STANDALONE_DEFAULTS: dict[str, object] = {
    "log.backend": "kafka",
    "scheduler.http_address": "127.0.0.1:9083",
    "publisher.grpc_address": "127.0.0.1:9091",
}

# Of a data directory: the files of the history.
HISTORY_DIR = "history"


class ProcessSettings(BaseModel):
    """The settings of every process of Muster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    log_level: logs.Level = Field("info", description="Least severe lines that are logged.")
    log_format: logs.Format = Field("auto", description="auto: json, unless standard error is a terminal.")
    trusted_network: bool = Field(
        False,
        description="HTTP addresses of view, publisher, scheduler and derive, and the publisher's gRPC address, may be "
        "wider than the loopback: only the gateway and monitoring reach them.",
    )
    followers_own_process: bool = Field(
        True,
        description="muster up: the view, the event publisher, usage and the HTTP front run in a process of their own, "
        "so that their work does not slow decisions. false: everything in one.",
    )
    follower_nice: int = Field(
        5,
        ge=0,
        le=19,
        description="Added to the niceness of the view, the event publisher and usage, where they have a process of "
        "their own: where cores are short, decisions go first. Between containers their weights count instead.",
    )
    live_address: OptionalListenAddress = Field(
        "",
        description="Where a thread of its own answers whether the process lives, host:port, for liveness probes; "
        "empty: not served.",
    )
    stall_s: float = Field(
        30.0,
        gt=0,
        description="The process does not live if its event loop has not turned in so much time that it could use.",
    )
    stop_timeout_s: float = Field(
        15.0, gt=0, description="Time for each service to stop; longer than its own time-outs."
    )


class MusterSettings(BaseModel):
    """All settings. The sections are the services' own models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    process: ProcessSettings = Field(default_factory=ProcessSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    view: ViewSettings = Field(default_factory=ViewSettings)
    publisher: PublisherSettings = Field(default_factory=PublisherSettings)
    derive: DeriveSettings = Field(default_factory=DeriveSettings)


def load(
    file: Path | None,
    assignments: Sequence[str],
    flags: Sequence[tuple[str, str, object]] = (),
    defaults: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ResolvedSettings[MusterSettings]:
    """The effective settings of a command.

    :param file: of ``--settings``; MUSTER_SETTINGS names one when it is None.
    :param assignments: ``section.field=value`` of ``--set``.
    :param flags: the command's named flags, as :func:`muster_cli.settings_loader.compose` takes them; they win.
    :param defaults: where the command's defaults differ from the models'.
    """
    variables = os.environ if environment is None else environment
    if file is None and variables.get(SETTINGS_VARIABLE):
        file = Path(variables[SETTINGS_VARIABLE])
    composed = compose(
        MusterSettings,
        defaults=defaults,
        file=file,
        environment=variables,
        flags=[*map(parse_assignment, assignments), *flags],
    )
    return _with_paths_relative_to_file(_with_parquet_moved(composed))


def _with_parquet_moved(composed: ResolvedSettings[MusterSettings]) -> ResolvedSettings[MusterSettings]:
    """Applies the table ``publisher.sinks.parquet`` to a command's default store, unless the user set that store's
    folder.

    Options that the table omits are those of the default. So two stores have the same name only if the user set both.
    """
    publisher = composed.values.publisher
    declared = publisher.sinks.get("parquet")
    if publisher.parquet_dir is None or ("publisher", "parquet_dir") in composed.origins:
        return composed
    if declared is None or "kind" in declared:
        return composed
    table = {"location": SecretStr(str(publisher.parquet_dir)), **declared}
    moved = publisher.model_copy(update={"parquet_dir": None, "sinks": {**publisher.sinks, "parquet": table}})
    return replace(composed, values=composed.values.model_copy(update={"publisher": moved}))


def _with_paths_relative_to_file(composed: ResolvedSettings[MusterSettings]) -> ResolvedSettings[MusterSettings]:
    """Resolves relative paths in the informers' tables of a settings file against that file's folder."""
    origin, path = composed.origins.get(("scheduler", "external", "informers"), (Origin.DEFAULT, ""))
    if origin is not Origin.FILE or ("scheduler", "external", "base") in composed.origins:
        return composed
    scheduler = composed.values.scheduler
    external = scheduler.external.model_copy(update={"base": Path(path).parent})
    moved = scheduler.model_copy(update={"external": external})
    return replace(composed, values=composed.values.model_copy(update={"scheduler": moved}))


def embedded_defaults(data_dir: Path) -> dict[str, object]:
    """Returns the defaults of ``muster up``: everything on one machine under one directory."""
    return {
        "log.backend": "sqlite",
        "log.sqlite_path": data_dir / "log.db",
        "gateway.sessions_url": f"sqlite://{data_dir.absolute()}/sessions.db",
        "publisher.parquet_dir": data_dir / HISTORY_DIR,
        # Other processes cannot read topics of the embedded log while it is in use.
        "derive.fan_out": False,
        # View and publisher answer through the gateway's front.
        "view.http_address": "",
        "publisher.http_address": "",
    }
