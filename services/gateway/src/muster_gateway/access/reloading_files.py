"""Files that are read again when they change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from muster_gateway.errors import InvalidGatewaySettings

log = structlog.get_logger(__name__)

T = TypeVar("T")
_State = tuple[tuple[int, int, int] | None, ...]


class ReloadingValue(Generic[T]):
    """A value that is made of files, whole or not at all: a bad change keeps the last good value.

    :param what: for messages.
    :param files: returns the files that the value is made of.
    :param read: makes the value. Raises InvalidGatewaySettings.
    :ivar problem: why the newest content of the files is not in force; "": it is.

    The constructor raises InvalidGatewaySettings.
    """

    def __init__(self, subject: str, files: Iterable[Path], read: Callable[[], T]) -> None:
        self._subject, self._files, self._read = subject, tuple(files), read
        self._state = self._file_states()
        self.value = read()
        self.problem = ""

    def refresh(self) -> bool:
        """Reads the files again if one has changed. Returns whether the value is another one. Never raises."""
        state = self._file_states()
        if state == self._state:
            return False
        self._state = state
        try:
            self.value = self._read()
        except InvalidGatewaySettings as error:
            self.problem = f"{self._subject}: {error}; what was read before stays in force"
            log.warning("change not taken", what=self._subject, problem=str(error))
            return False
        self.problem = ""
        log.info("change taken", what=self._subject)
        return True

    def _file_states(self) -> _State:
        return tuple(map(_state_of, self._files))


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
