"""The flags of every command with settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from muster_client.access import Access, AccessWrong

from muster_cli.context_positions import POSITIONS
from muster_cli.errors import UsageError

# The groups of commands.
RUN, INSPECT = Group("Run", sort_key=1), Group("Look", sort_key=2)
OPERATE, HISTORY = Group("Operate", sort_key=3), Group("History", sort_key=4)

_ACCESS = Group("Access", sort_key=90)

TOKEN_VARIABLE = "MUSTER_TOKEN"  # noqa: S105 - a name

_SETTINGS = Group("Settings", sort_key=100)

# Where client commands find Muster. A flag wins over its variable; `muster context` sets the variables (contexts.py).
GATEWAY_VARIABLE, HTTP_VARIABLE, RM_VARIABLE = "MUSTER_GATEWAY", "MUSTER_HTTP", "MUSTER_RM"
GatewayAddress = Annotated[str, Parameter(env_var=GATEWAY_VARIABLE)]
HttpAddress = Annotated[str, Parameter(env_var=HTTP_VARIABLE)]
RmId = Annotated[str, Parameter(env_var=RM_VARIABLE)]
# "-" is a value, not the beginning of a flag.
ReportFile = Annotated[Path | None, Parameter(allow_leading_hyphen=True)]
InputFile = Annotated[Path, Parameter(allow_leading_hyphen=True)]
DEFAULT_GATEWAY, DEFAULT_HTTP = "127.0.0.1:9090", "http://127.0.0.1:9080"


@Parameter(name="*", group=_SETTINGS)
@dataclass(frozen=True, slots=True)
class SettingsFlags:
    """The sources of settings beside a command's own flags: a file, the environment, ``--set``; the last one wins."""

    settings: Path | None = None
    """TOML file with a table for each section; MUSTER_SETTINGS can name it too."""
    set: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """One setting as section.field=value (`muster config show` lists all); repeatable."""


@Parameter(name="*", group=_ACCESS)
@dataclass(frozen=True, slots=True)
class AccessFlags:
    """How a command reaches a gateway that wants credentials (docs/security.md). A flag wins over its variable."""

    token_file: Path | None = None
    """File with a token [MUSTER_TOKEN_FILE, or the token itself in MUSTER_TOKEN]."""
    tls: Annotated[bool, Parameter(negative="")] = False
    """Use TLS with the system's authorities [MUSTER_TLS]."""
    tls_ca: Path | None = None
    """PEM file with the authorities of the gateway's certificate [MUSTER_TLS_CA]."""
    tls_cert: Path | None = None
    """PEM file with your certificate [MUSTER_TLS_CERT]."""
    tls_key: Path | None = None
    """PEM file with its key [MUSTER_TLS_KEY]."""
    tls_server: str = ""
    """The name in the gateway's certificate, if it is not that of the address [MUSTER_TLS_SERVER]."""
    after: str = ""
    """Position that the answer must include [MUSTER_AFTER; a context keeps that of its last change]."""

    def access(self, environment: Mapping[str, str] | None = None) -> Access:
        """Returns what the flags and the environment say. Raises UsageError, which never shows a token."""
        variables = os.environ if environment is None else environment
        if self.token_file is not None:
            token_of(self.token_file)  # says which flag it is
        try:
            env_access = Access.of_environment(variables)
            access = Access(
                env_access.token,
                self.token_file or env_access.token_file,
                self.tls or env_access.tls,
                self.tls_ca or env_access.ca,
                self.tls_cert or env_access.certificate,
                self.tls_key or env_access.key,
                self.tls_server or env_access.server_name,
                self.after or env_access.after or POSITIONS.stored(),
            )
            access.bearer()
            access.credentials()
        except AccessWrong as error:
            raise UsageError(str(error)) from error
        return access


NO_ACCESS_FLAGS = AccessFlags()


def token_of(file: Path | None, environment: Mapping[str, str] | None = None) -> str:
    """Returns the token for a gateway: a file's content, else MUSTER_TOKEN; "": none.

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
