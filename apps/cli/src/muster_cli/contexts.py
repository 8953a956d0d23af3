"""``muster context``: named sets of address, RM and access for client commands.

The file is TOML, readable for its owner only. A context sets variables (``MUSTER_GATEWAY`` and so on) that the
environment does not have, so that a variable wins over a context and a flag over both. ``MUSTER_CONTEXT`` names a
context for one command. A token itself never comes into the file, but the name of its file does. Beside the file are
the positions of the contexts' changes (``context_positions.py``).
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from cyclopts import App
from muster_runtime import durable
from muster_runtime.terminal import escape_invisible, print_lines
from rich.table import Table

from muster_cli.context_positions import POSITIONS
from muster_cli.errors import CommandError, UsageError
from muster_cli.flags import GATEWAY_VARIABLE, HTTP_VARIABLE, OPERATE, RM_VARIABLE
from muster_cli.operator_client import print_table

CONTEXT_VARIABLE, FILE_VARIABLE = "MUSTER_CONTEXT", "MUSTER_CONTEXTS"
# What a context may have: its name in the file, and the variable that it sets.
FIELDS = {
    "gateway": GATEWAY_VARIABLE,
    "http": HTTP_VARIABLE,
    "rm": RM_VARIABLE,
    "token_file": "MUSTER_TOKEN_FILE",
    "tls": "MUSTER_TLS",
    "tls_ca": "MUSTER_TLS_CA",
    "tls_cert": "MUSTER_TLS_CERT",
    "tls_key": "MUSTER_TLS_KEY",
    "tls_server": "MUSTER_TLS_SERVER",
}


@dataclass(slots=True)
class Contexts:
    """The file's content.

    :ivar current: the name of the context in force; "": none.
    :ivar named: the fields of each context.
    """

    current: str = ""
    named: dict[str, dict[str, str]] = field(default_factory=dict)


def file_of(environment: Mapping[str, str]) -> Path:
    """Returns where the contexts are."""
    if environment.get(FILE_VARIABLE):
        return Path(environment[FILE_VARIABLE])
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config"
    return Path(home) / "muster" / "contexts.toml"


def load(path: Path) -> Contexts:
    """Reads the file; without a file there are no contexts. Raises UsageError."""
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    named = document.get("context", {})
    current = document.get("current", "")
    if not isinstance(named, dict) or not isinstance(current, str):
        raise UsageError(f'{path}: expected current = "NAME" and tables [context.NAME]')
    contexts = Contexts(current)
    for name, fields in named.items():
        if not isinstance(fields, dict):
            raise UsageError(f"{path}: context.{name}: expected a table")
        for field_name, value in fields.items():
            if field_name not in FIELDS or not isinstance(value, str):
                raise UsageError(f"{path}: context.{name}.{field_name}: expected a text, of one of {', '.join(FIELDS)}")
        contexts.named[name] = dict(fields)
    return contexts


def store(path: Path, contexts: Contexts) -> None:
    """Writes the file, whole or not at all. Raises CommandError."""
    lines = [f"current = {_quoted(contexts.current)}"]
    for name, fields in sorted(contexts.named.items()):
        lines += [
            "",
            f"[context.{_quoted(name)}]",
            *(f"{field_name} = {_quoted(value)}" for field_name, value in fields.items()),
        ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(path, ("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror}") from error


def apply(environment: MutableMapping[str, str]) -> None:
    """Sets the variables of the context in force that the environment does not have; its position is in force, too.
    Raises UsageError.
    """
    path = file_of(environment)
    POSITIONS.use(None)
    override = environment.get(CONTEXT_VARIABLE, "")
    if not override and not path.exists():
        return
    contexts = load(path)
    name = override or contexts.current
    if not name:
        return
    for field_name, value in _fields_of(contexts, name, CONTEXT_VARIABLE if override else str(path)).items():
        environment.setdefault(FIELDS[field_name], value)
    POSITIONS.use(path, name)


def _fields_of(contexts: Contexts, name: str, origin: str) -> dict[str, str]:
    if name not in contexts.named:
        names = ", ".join(sorted(contexts.named)) or "none"
        raise UsageError(f"{origin}: unknown context {name!r}; known: {names} (muster context set {name} …)")
    return contexts.named[name]


def _quoted(text: str) -> str:
    """Returns a TOML string. (What JSON writes is one, but for DEL.)"""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---- the commands ----------------------------------------------------------------------------------------------------

context_app = App(
    name="context",
    help="Keep addresses and access of several Musters under names (docs/command-line.md).",
    group=OPERATE,
)


@context_app.command(name="list")
def _list() -> int:
    """Lists the contexts; a star marks the one in force."""
    contexts = load(file_of(os.environ))
    if not contexts.named:
        print_lines("no contexts: muster context set NAME --gateway HOST:PORT --http URL makes one", error=True)
        return 0
    current = os.environ.get(CONTEXT_VARIABLE) or contexts.current
    table = Table("", "context", *(field_name.replace("_", "-") for field_name in FIELDS), box=None, pad_edge=False)
    for name, fields in sorted(contexts.named.items()):
        table.add_row("*" if name == current else "", name, *(fields.get(field_name, "") for field_name in FIELDS))
    print_table(table)
    return 0


@context_app.command(name="set")
def _set(
    name: str,
    *,
    gateway: str | None = None,
    http: str | None = None,
    rm: str | None = None,
    token_file: str | None = None,
    tls: str | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_server: str | None = None,
) -> int:
    """Makes a context, or changes what is given of it; an empty value removes it. The first context is in force.

    :param name: the context's name.
    :param gateway: gRPC address of a gateway (MUSTER_GATEWAY).
    :param http: host:port or URL of its REST (MUSTER_HTTP).
    :param rm: the RM's id (MUSTER_RM).
    :param token_file: file with a token; the token itself stays there (MUSTER_TOKEN_FILE).
    :param tls: "true": use TLS with the system's authorities (MUSTER_TLS).
    :param tls_ca: PEM file with the authorities of the gateway's certificate (MUSTER_TLS_CA).
    :param tls_cert: PEM file with your certificate (MUSTER_TLS_CERT).
    :param tls_key: PEM file with its key (MUSTER_TLS_KEY).
    :param tls_server: the name in the gateway's certificate (MUSTER_TLS_SERVER).
    """
    options = {
        "gateway": gateway,
        "http": http,
        "rm": rm,
        "token_file": token_file,
        "tls": tls,
        "tls_ca": tls_ca,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_server": tls_server,
    }
    if not name:
        raise UsageError("NAME '': expected a context's name")
    path = file_of(os.environ)
    contexts = load(path)
    kept = {
        **contexts.named.get(name, {}),
        **{field_name: value for field_name, value in options.items() if value is not None},
    }
    contexts.named[name] = {field_name: kept[field_name] for field_name in FIELDS if kept.get(field_name)}
    if len(contexts.named) == 1:
        contexts.current = name
    store(path, contexts)
    print_lines(f"{escape_invisible(name)} is stored" + (" and in force" if contexts.current == name else ""))
    return 0


@context_app.command(name="use")
def _use(name: str = "") -> int:
    """Puts a context in force.

    :param name: the context's name; without it none is in force.
    """
    path = file_of(os.environ)
    contexts = load(path)
    if name:
        _fields_of(contexts, name, "NAME")
    contexts.current = name
    store(path, contexts)
    print_lines(f"{escape_invisible(name)} is in force" if name else "no context is in force")
    return 0


@context_app.command(name="delete")
def _delete(name: str) -> int:
    """Removes a context.

    :param name: the context's name.
    """
    path = file_of(os.environ)
    contexts = load(path)
    _fields_of(contexts, name, "NAME")
    del contexts.named[name]
    if contexts.current == name:
        contexts.current = ""
    store(path, contexts)
    print_lines(f"{escape_invisible(name)} is removed")
    return 0
