"""The data directory of a `muster up` that this user runs on this machine (Linux: from /proc)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_PROC = Path("/proc")


def data_dir_of(http_address: str, usual: str, proc: Path = _PROC) -> Path | None:
    """Returns the directory of the `muster up` with this HTTP address; None if there is no such process.

    :param http_address: host:port, as in its command line.
    :param usual: the address of one whose command line names none.
    :param proc: for tests.
    """
    for process in proc.glob("[0-9]*"):
        try:
            if process.stat().st_uid != os.getuid():
                continue
            arguments = (process / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
            flags = _flags_of_up(arguments)
            named = _value("--data-dir", flags, "")
            if not named or _value("--http-address", flags, usual) != http_address:
                continue
            directory = (process / "cwd").readlink() / named
        except OSError:  # it has ended, or belongs to another user
            continue
        if directory.is_dir():
            return directory
    return None


def _flags_of_up(arguments: Sequence[str]) -> Sequence[str]:
    """Returns what is behind `muster up`; nothing of any other command."""
    if "up" not in arguments:
        return ()
    at = arguments.index("up")
    programs = [Path(argument).name for argument in arguments[:at]]
    return arguments[at + 1 :] if {"muster", "muster_cli"} & set(programs) else ()


def _value(flag: str, flags: Sequence[str], default: str) -> str:
    for number, argument in enumerate(flags):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and number + 1 < len(flags):
            return flags[number + 1]
    return default
