"""The wall clock of other processes, as libfaketime shows it to them. Their monotonic clocks are the machine's."""

from __future__ import annotations

from pathlib import Path

from wanting import give_up


def library() -> str:
    """Debian's package faketime, which ``make test`` installs."""
    found = list(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        why = "libfaketime is not installed (Debian: faketime)"
        give_up(why)
    return str(found[0])


def environment(file: Path) -> dict[str, str]:
    """Variables of processes whose wall clock the file tells, in libfaketime's words."""
    return {
        "LD_PRELOAD": library(),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",  # it reads the file again after so many seconds
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Waits with a limit are on the monotonic clock. libfaketime's remedy for an old glibc ends them at once
        # instead: threads that wait for Python's lock then take three times the processor time.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


class WallClock:
    """:param file: tells libfaketime how far the clock is off."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the processes that have this clock."""
        return environment(self._file)

    def set(self, days: int) -> None:
        """Sets the clock so many days off."""
        self.set_s(days * 86_400)

    def set_s(self, seconds: float) -> None:
        """Sets the clock so many seconds off."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{seconds:+.3f}\n")
        beside.replace(self._file)
