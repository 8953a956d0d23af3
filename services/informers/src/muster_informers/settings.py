"""The settings of informers and event handlers: ``scheduler.external``, with a table for each informer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from muster_core.config.queue_config import partition_name
from muster_core.external.validation import name_problem
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

HANDLER_PREFIX = "handler_"


class InformerTable(BaseModel):
    """``scheduler.external.informers.NAME``: the settings of all informers; further keys are the options of its kind.

    Texts among the options are secrets: output and logs have them masked; only the factory sees them.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    kind: str = Field(min_length=1, description="the informer's kind: an entry point of muster.informers")
    rm: str = Field(min_length=1, description="the RM whose cluster its objects belong to")
    partition: str = Field("default", description="the partition of that RM")
    required: bool = Field(
        True, description="if the source has not listed in time: true exits, false starts without it"
    )
    when_lost: Literal["drain", "keep"] = Field(
        "drain", description="when it is lost, its nodes take no new allocations (drain) or stay open (keep)"
    )
    stale_after_s: float = Field(30.0, ge=0, description="a failing source is lost after so long without an answer")
    resync_s: float = Field(0.0, ge=0, description="how often the handler gets all known objects again; 0: never")
    changes_per_s_max: int = Field(
        0,
        ge=0,
        description="how many of its changes reach the scheduler in a second; waiting objects are sent in their newest "
        "state; 0: no limit",
    )
    handler: str = Field("", description="its event handler; empty: the one that event_handler names")

    @model_validator(mode="after")
    def _hide(self) -> Self:
        for name, value in (self.__pydantic_extra__ or {}).items():
            self.__pydantic_extra__[name] = _hidden(value)  # type: ignore[index]  # (it is there: it was just walked)
        return self

    @field_validator("rm", "partition")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if problem := name_problem(value, "name"):
            raise ValueError(problem)
        return value

    @property
    def partition_name(self) -> str:
        """The partition's name in its canonical form."""
        return partition_name(self.partition, self.rm)

    def options(self) -> dict[str, object]:
        """The options of its kind in clear; they must not get into a log or an error."""
        return {
            name: _reveal_secrets(value) for name, value in self._extra_options() if not name.startswith(HANDLER_PREFIX)
        }

    def handler_options(self) -> dict[str, object]:
        """Returns the options of its handler, without their prefix; likewise unmasked."""
        return {
            name.removeprefix(HANDLER_PREFIX): _reveal_secrets(value)
            for name, value in self._extra_options()
            if name.startswith(HANDLER_PREFIX)
        }

    def _extra_options(self) -> list[tuple[str, object]]:
        return list((self.__pydantic_extra__ or {}).items())


class ExternalSettings(BaseModel):
    """Resources that the RM does not know (docs/external.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    event_handler: str = Field(
        "default", min_length=1, description="Event handler of informers that name none: an entry point."
    )
    config_path: Path | None = Field(None, description="A file that event handlers get unchanged.")
    sync_timeout_s: float = Field(
        60.0, gt=0, description="How long the first decision waits for informers to list everything."
    )
    own_process: bool = Field(
        True,
        description="Informers run in a process of their own, a child of the scheduler's: their work does not slow "
        "decisions. false: in the scheduler's.",
    )
    instance: str = Field("", description="Name of this scheduler among `instances`.")
    instances: tuple[str, ...] = Field(
        (),
        description="Names of the schedulers that share a fleet; each takes its own nodes; empty: only one.",
    )
    base: Path = Field(
        Path(),
        description="Directory for relative paths in informers' tables; default: the directory of the settings file.",
    )
    informers: dict[str, InformerTable] = Field(
        default_factory=dict, description="Informers by name: kind, rm, partition, …, and the options of the kind."
    )

    @field_validator("informers")
    @classmethod
    def _are_named(cls, informers: dict[str, InformerTable]) -> dict[str, InformerTable]:
        for name in informers:
            if problem := name_problem(name, "name of an informer"):
                raise ValueError(problem)
        return informers

    @model_validator(mode="after")
    def _is_one_of(self) -> Self:
        if len(set(self.instances)) < len(self.instances):
            raise ValueError(f"instances: {', '.join(self.instances)}, expected each name once")
        if self.instances and self.instance not in self.instances:
            raise ValueError(f"instance: {self.instance!r}, expected one of instances: {', '.join(self.instances)}")
        return self

    def in_clear(self) -> dict[str, object]:
        """The settings as plain values in clear, to make the same settings again; they must not get into a log or an
        error.
        """
        plain = {**self.model_dump(exclude={"informers"}), "informers": {}}
        for name in ("config_path", "base"):
            plain[name] = None if plain[name] is None else str(plain[name])
        tables = {name: table.model_dump() for name, table in self.informers.items()}
        plain["informers"] = {name: _reveal_secrets(table) for name, table in tables.items()}
        return plain


def _hidden(value: object) -> object:
    if isinstance(value, str):
        return SecretStr(value)
    if isinstance(value, Mapping):
        return {name: _hidden(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_hidden(item) for item in value]
    return value


def _reveal_secrets(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: _reveal_secrets(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_reveal_secrets(item) for item in value]
    return value
