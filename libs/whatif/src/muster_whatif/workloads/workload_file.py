"""A workload as a file of JSON: what ``muster what-if`` read from a history, to be played again and elsewhere."""

from __future__ import annotations

from pathlib import Path

import msgspec

from muster_whatif.errors import InvalidWorkload
from muster_whatif.workload import Workload


def read(path: Path) -> Workload:
    """Reads a file of :func:`write`. Raises InvalidWorkload."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Workload)
    except OSError as error:
        raise InvalidWorkload(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidWorkload(f"{path}: {error}") from error


def write(workload: Workload, path: Path) -> None:
    """Writes a workload. Raises OSError."""
    path.write_bytes(msgspec.json.encode(workload))
