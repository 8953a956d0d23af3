"""The flags of every command with settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from muster_cli.errors import UsageError

TOKEN_VARIABLE = "MUSTER_TOKEN"  # noqa: S105 - a name

_SETTINGS = Group("Settings", sort_key=100)


@Parameter(name="*", group=_SETTINGS)
@dataclass(frozen=True, slots=True)
class Common:
    """The sources of settings beside a command's own flags: a file, the environment, ``--set``; the last one wins."""

    settings: Path | None = None
    """TOML file with a table for each section; MUSTER_SETTINGS can name it too."""
    set: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """One setting as section.field=value (`muster config show` lists all); repeatable."""


def token_of(file: Path | None, environment: Mapping[str, str] | None = None) -> str:
    """Returns the token for the gateway's HTTP front: a file's content, else MUSTER_TOKEN; "": none.

    (No flag takes the token itself, because other users see a process's arguments.) Raises UsageError, which never
    shows the token.
    """
    if file is None:
        token = (os.environ if environment is None else environment).get(TOKEN_VARIABLE, "").strip()
        source = TOKEN_VARIABLE
    else:
        source = f"--token-file {file}"
        try:
            token = file.read_text("ascii").strip()
        except OSError as error:
            raise UsageError(f"{source}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise UsageError(f"{source}: not a token") from None
        if not token:
            raise UsageError(f"{source}: is empty, expected a token")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"{source}: not a token: it has blanks or other invalid characters")
    return token
