"""Options of the shipped informers: a strict model per kind; errors name option, value and expectation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from muster_core.external.errors import InformerSettingsWrong
from muster_runtime.store_credentials import ClientTls, StoreNames
from pydantic import AllowInfNan, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from muster_informers.contract import InformerContext, Options
from muster_informers.sources.error_text import without_secrets

# How often a watch reports that its source lives while nothing changes, if the source is not polled.
HEARTBEAT_S = 2.0
_QUOTED_MAX = 80

Seconds = Annotated[float, Field(gt=0, le=3600), AllowInfNan(False)]
SecondsOrNone = Annotated[float, Field(ge=0, le=3600), AllowInfNan(False)]
Bytes = Annotated[int, Field(ge=1, le=1 << 31)]

M = TypeVar("M", bound=BaseModel)


class InformerOptions(BaseModel):
    """The options of one kind beside those of all informers. Values never reach an error of pydantic."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def options_as(model: type[M], options: Options, context: InformerContext) -> M:
    """Returns the options as a model.

    :raises InformerSettingsWrong: one sentence for each problem: option, value (never a secret's), expectation.
    """
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        # pydantic's error holds values
        raise InformerSettingsWrong(*(_problem(model, context.name, detail) for detail in details)) from None


def wrong(context: InformerContext, option: str, problem: str) -> InformerSettingsWrong:
    """The error for an option that only the factory can check."""
    return InformerSettingsWrong(f"{_setting_path(context.name)}{'.' + option if option else ''}: {problem}")


def is_secret(model: type[BaseModel], option: str) -> bool:
    """Tells whether an option's value must not be shown."""
    field = model.model_fields.get(option)
    return field is None or "Secret" in repr(field.annotation)


def revealed(secret: SecretStr | None) -> str | None:
    """Returns a secret's text, for sending it."""
    return None if secret is None else secret.get_secret_value()


class _HasTlsFiles(Protocol):
    """The options of a TLS client; "" for a file that is not used."""

    @property
    def ca_file(self) -> str: ...
    @property
    def client_cert_file(self) -> str: ...
    @property
    def client_key_file(self) -> str: ...


def files_of(options: _HasTlsFiles, base: Path | str) -> ClientTls:
    """Returns the files of TLS, relative ones below a directory."""
    names = (options.ca_file, options.client_cert_file, options.client_key_file)
    return ClientTls(*(Path(base) / name if name else None for name in names))


def names_of(
    context: InformerContext, store: str, *, account: str, protocol: str, tls: str, address: str
) -> StoreNames:
    """Returns the names of an informer's options, for messages; see :meth:`StoreNames.prefixed`."""
    prefix = f"{_setting_path(context.name)}."
    return StoreNames.prefixed(prefix, store, account=account, protocol=protocol, tls=tls, address=address)


def _setting_path(name: str) -> str:
    return f"scheduler.external.informers.{name}"


def _problem(model: type[BaseModel], name: str, problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    where = ".".join([_setting_path(name), *location])
    option = location[0] if location else ""
    match problem["type"]:
        case "extra_forbidden":
            return f"{where}: there is no such option; expected one of: {', '.join(sorted(model.model_fields))}"
        case "missing":
            return f"{where}: is missing; expected: {model.model_fields[option].description}"
        case "value_error" if not option:
            return f"{where}: {_expectation(problem)}"
    if is_secret(model, option):
        return f"{where}: {_expectation(problem)}"
    return f"{where}: {_quote(problem['input'])}: {_expectation(problem)}"


def _expectation(problem: Any) -> str:
    text = str(problem["msg"]).removeprefix("Value error, ")
    return text.replace("Input should be", "expected")


def _quote(value: object) -> str:
    if isinstance(value, SecretStr):
        return "(a secret)"
    text = repr(without_secrets(value)) if isinstance(value, str) else repr(value)
    return text if len(text) <= _QUOTED_MAX else f"{text[:_QUOTED_MAX]}…"
