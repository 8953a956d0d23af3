"""The flags of ``muster audit``; a module of its own, because every command loads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from muster_cli import numbers
from muster_cli.flags import DEFAULT_GATEWAY, NO_ACCESS_FLAGS, AccessFlags, GatewayAddress, RmId


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class AuditSelection:
    """Where the entries are, and which are wanted."""

    gateway: GatewayAddress = DEFAULT_GATEWAY
    """gRPC address of a gateway."""
    data_dir: Path | None = None
    """Read the embedded log of `muster up` there, instead of asking a gateway; Muster may be running or not."""
    rm: RmId = ""
    """Entries about this RM."""
    identity: str = ""
    """Entries of this caller."""
    action: str = ""
    """Such as register, configure, pause, forget, or the right that a refused attempt needed."""
    result: str = ""
    """accepted, refused or failed."""
    since: str = ""
    """Recorded then or later: 2026-01-31T12:00:00Z, or 90s, 10m, 2h, 1d ago."""
    until: str = ""
    """Recorded before; in the same form."""
    last: numbers.NewestEntries = None
    """The newest so many; not with --follow."""
    follow: Annotated[bool, Parameter(negative="")] = False
    """Go on with new entries until Ctrl-C."""
    timeout_s: numbers.TimeoutS = 60.0
    """How long to wait for a gateway's answer; not with --follow."""
    json: Annotated[bool, Parameter(negative="")] = False
    """Print each entry as one line of JSON."""
    flags: AccessFlags = NO_ACCESS_FLAGS
    """Token and TLS."""
