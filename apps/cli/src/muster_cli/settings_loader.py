"""Composes settings from four origins: the default, a file, the environment, a flag; the later one wins.

The services define their settings as frozen pydantic models and know nothing of files or flags. Here a *section* is the
name of one such model, and a *setting* is ``section.field`` (``section.group.field`` if a model holds a model):

* file: TOML, a table per section;
* environment: ``MUSTER_<SECTION>__<FIELD>``, upper case, ``__`` between the parts;
* flag: ``--set section.field=value``, and the named flags of a command, which mean the same.

A name that no model has is an error in every origin: otherwise users would notice a misspelt setting only in
production. All errors are collected, so that one run shows all of them. No message shows a secret's value.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
import types
import typing
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from muster_runtime.secrets import MASK, is_secret, masked_text
from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError

ENVIRONMENT_PREFIX = "MUSTER_"
SEPARATOR = "__"

MAX_DEPTH = 32  # the names in a setting's path: settings have up to four; a dotted TOML key can have thousands

_ADDRESS = re.compile(r"^[a-z][a-z0-9+.-]*://")

SettingPath = tuple[str, ...]
M = TypeVar("M", bound=BaseModel)


class Origin(StrEnum):
    """The source of a setting's value. In order of precedence, the weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class SettingsError(Exception):
    """Invalid settings.

    :param problems: one line each, with the place, the setting and the expectation.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective setting, in the form for output.

    :param shown: its value as text, secrets masked.
    :param place: the file, variable or flag of its value; "" for a default.
    """

    name: str
    shown: str
    origin: Origin
    place: str
    description: str


@dataclass(frozen=True, slots=True)
class ResolvedSettings(Generic[M]):
    """The validated settings, with their origins."""

    values: M
    origins: Mapping[SettingPath, tuple[Origin, str]]

    def effective(self) -> list[Setting]:
        """Returns every setting in the order of the models."""
        return [
            Setting(
                ".".join(path),
                format_value(_value_at(self.values, path)),
                *self.origins.get(path, (Origin.DEFAULT, "")),
                description,
            )
            for path, _, description in iter_settings(type(self.values))
        ]


@dataclass(frozen=True, slots=True)
class _RawValue:
    value: object
    origin: Origin
    location: str


def compose(
    model: type[M],
    *,
    defaults: Mapping[str, object] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[tuple[str, str, object]] = (),
) -> ResolvedSettings[M]:
    """Composes the settings of a model whose fields are sections.

    :param defaults: ``section.field`` to a value, where a command's defaults differ from the models'.
    :param file: a TOML file.
    :param flags: ``(setting, flag as the user wrote it, value)``; the last one of a setting wins.
    :raises SettingsError: with all errors.
    """
    types_of = {path: annotation for path, annotation, _ in iter_settings(model)}
    raw_values: dict[SettingPath, _RawValue] = {}
    problems: list[str] = []

    def set_value(path: SettingPath, raw_value: _RawValue) -> None:
        if path not in types_of:
            problems.append(f"{raw_value.location}: unknown setting {'.'.join(path)!r}{_suggestion(path, types_of)}")
        else:
            value = _parse(raw_value.value, types_of[path]) if isinstance(raw_value.value, str) else raw_value.value
            raw_values[path] = _RawValue(value, raw_value.origin, raw_value.location)

    for name, value in (defaults or {}).items():
        set_value(tuple(name.split(".")), _RawValue(value, Origin.DEFAULT, ""))
    if file is not None:
        for path, value in _read_file(file, types_of):
            set_value(path, _RawValue(value, Origin.FILE, str(file)))
    for name, text in sorted((environment or {}).items()):
        if name.startswith(ENVIRONMENT_PREFIX) and SEPARATOR in name[len(ENVIRONMENT_PREFIX) :]:
            path = tuple(part.lower() for part in name[len(ENVIRONMENT_PREFIX) :].split(SEPARATOR))
            set_value(path, _RawValue(text, Origin.ENVIRONMENT, name))
    for name, flag, value in flags:
        set_value(tuple(name.split(".")), _RawValue(value, Origin.FLAG, flag))

    tree: dict[str, Any] = {}
    for path, raw_value in raw_values.items():
        branch = tree
        for part in path[:-1]:
            branch = branch.setdefault(part, {})
        branch[path[-1]] = raw_value.value
    values: M | None = None
    try:
        values = model.model_validate(tree)
    except ValidationError as error:
        problems += _explain(error, raw_values, types_of)
    if problems or values is None:
        raise SettingsError(problems)
    return ResolvedSettings(
        values,
        {path: (raw_value.origin, raw_value.location) for path, raw_value in raw_values.items() if raw_value.location},
    )


def parse_assignment(text: str) -> tuple[str, str, str]:
    """Parses ``section.field=value`` of a ``--set`` flag, for :func:`compose`."""
    name, equals, value = text.partition("=")
    if not equals or "." not in name:
        raise SettingsError([f"--set {masked_text(text)!r}: expected section.field=value"])
    return name.strip(), f"--set {name.strip()}", value


def iter_settings(model: type[BaseModel], prefix: SettingPath = ()) -> Iterator[tuple[SettingPath, Any, str]]:
    """Yields path, type and description of every setting of a model and its nested models."""
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None:
            yield from iter_settings(inner, (*prefix, name))
        else:
            yield (*prefix, name), field.annotation, field.description or ""


def format_value(value: object) -> str:
    """Returns a value as text for people, with secrets masked."""
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        return _masked(secret) if _ADDRESS.match(secret) else MASK if secret else ""
    if isinstance(value, SecretBytes):
        return MASK
    if isinstance(value, str):
        return _masked(value) if _ADDRESS.match(value) else masked_text(value)
    if isinstance(value, BaseModel):
        return format_value(dict(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_format_item(str(key), item)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "[" + ", ".join(sorted(format_value(item) for item in value)) + "]"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    return str(value)


def _format_item(name: str, value: object) -> str:
    return MASK if isinstance(value, str) and value and is_secret(name) else format_value(value)


def _masked(address: str) -> str:
    """Returns an address without its password, and without its query, which may hold passwords, too."""
    parts = urllib.parse.urlsplit(address)
    account, at, host = parts.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    netloc = f"{user}{colon}{MASK if colon else ''}{at}{host}"
    return parts._replace(netloc=netloc, query=MASK if parts.query else "").geturl()


def _read_file(file: Path, types_of: Mapping[SettingPath, object]) -> Iterator[tuple[SettingPath, object]]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError([f"{file}: cannot be read: {error.strerror}"]) from error
    except ValueError as error:  # no TOML, no UTF-8, or a number of more digits than Python reads
        raise SettingsError([f"{file}: is not TOML: {error}"]) from error
    except RecursionError as error:
        raise SettingsError([f"{file}: is nested too deeply"]) from error

    def walk(prefix: SettingPath, value: object) -> Iterator[tuple[SettingPath, object]]:
        if len(prefix) > MAX_DEPTH:
            raise SettingsError([f"{file}: {'.'.join(prefix[:3])}... is nested too deeply"])
        if isinstance(value, dict) and prefix not in types_of:
            for name, inner in value.items():
                yield from walk((*prefix, name), inner)
            if not value and prefix and not any(path[: len(prefix)] == prefix for path in types_of):
                yield prefix, value
        else:
            yield prefix, value

    yield from walk((), content)


def _parse(text: str, annotation: object) -> object:
    """Converts a text from the environment or a flag for pydantic: JSON or a comma list for collections."""
    origins = {typing.get_origin(alternative) or alternative for alternative in _alternatives(annotation)}
    if origins & {list, tuple, set, frozenset, dict} or any(
        isinstance(origin, type) and issubclass(origin, Sequence | Mapping) and origin is not str for origin in origins
    ):
        if text.lstrip()[:1] in "[{" and text.strip():
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                return text  # pydantic reports the expectation
        if dict in origins and not text.strip():
            return {}
        if dict not in origins:
            return [part.strip() for part in text.split(",") if part.strip()]
    if type(None) in origins and text == "":
        return None
    return text


def _explain(
    error: ValidationError, raw_values: Mapping[SettingPath, _RawValue], types_of: Mapping[SettingPath, object]
) -> Iterator[str]:
    for problem in error.errors():
        location = tuple(str(part) for part in problem["loc"])
        path = next((location[:n] for n in range(len(location), 0, -1) if location[:n] in raw_values), location)
        raw_value = raw_values.get(path)
        prefix = f"{raw_value.location}: " if raw_value is not None and raw_value.location else ""
        suffix = ""
        if (
            raw_value is not None
            and isinstance(raw_value.value, (str, int, float, bool))
            and not _is_secret(types_of[path])
        ):
            suffix = f", not {format_value(raw_value.value)!r}"
        yield f"{prefix}{'.'.join(location)}: {problem['msg']}{suffix}"


def _is_secret(annotation: object) -> bool:
    """Tells whether a value of this type may hold a secret, also within a table or a list."""
    if annotation in (SecretStr, SecretBytes):
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        open_ended = annotation.model_config.get("extra") == "allow"
        return open_ended or any(_is_secret(field.annotation) for field in annotation.model_fields.values())
    return any(_is_secret(argument) for argument in typing.get_args(annotation))


def _suggestion(path: SettingPath, types_of: Mapping[SettingPath, object]) -> str:
    names = [".".join(setting_path) for setting_path in types_of]
    near = difflib.get_close_matches(".".join(path), names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    sections = sorted({setting_path[0] for setting_path in types_of})
    return "" if path[0] in sections else f"; sections are {', '.join(sections)}"


def _alternatives(annotation: object) -> Sequence[object]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _model_in(annotation: object) -> type[BaseModel] | None:
    for alternative in _alternatives(annotation):
        if isinstance(alternative, type) and issubclass(alternative, BaseModel):
            return alternative
    return None


def _value_at(values: object, path: SettingPath) -> object:
    for part in path:
        values = getattr(values, part, None)
    return values
