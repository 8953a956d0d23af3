"""Failures of a machine: told apart from those of the log, and counted for each input record."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from muster_bus.errors import BusError

T = TypeVar("T")


class StateMachineError(Exception):
    """A failure of the machine (``__cause__``), as opposed to one of the log.

    :param blamed: certain input caused the failure, and the worker's suspicion records it.
    """

    def __init__(self, blamed: bool) -> None:
        super().__init__("the machine failed")
        self.blamed = blamed


@dataclass(slots=True)
class PoisonTracker:
    """Input that machines failed on. The worker keeps it when it drops a machine."""

    until: int = -1  # input before this offset is applied and committed one record at a time
    failures: dict[int, int] = field(default_factory=dict)  # failures on this record alone, by offset
    put_aside: dict[int, str] = field(default_factory=dict)  # offset → why

    def record_failure(self, first: int, after: int, reason: str, quarantine_after: int) -> None:
        """Records a failure on the input ``[first, after)``.

        The worker then applies this input one record at a time. A single record with ``quarantine_after`` failures is
        put aside.
        """
        self.until = max(self.until, after)
        if after - first == 1:
            count = self.failures.get(first, 0) + 1
            self.failures[first] = count
            if count >= quarantine_after:
                self.put_aside[first] = reason

    def forget_before(self, offset: int) -> None:
        """Forgets input before ``offset``, which is committed."""
        if self.failures or self.put_aside:
            self.failures = {at: count for at, count in self.failures.items() if at >= offset}
            self.put_aside = {at: reason for at, reason in self.put_aside.items() if at >= offset}


def call_machine(call: Callable[..., T], *arguments: object) -> T:
    """Calls the machine. Raises StateMachineError for any exception."""
    try:
        return call(*arguments)
    except Exception as error:
        raise StateMachineError(blamed=False) from error


def kind_of(error: BaseException | None) -> str:
    """Returns the name of an error's class."""
    return type(error).__name__


def one_line(error: BaseException) -> str:
    """Returns the loggable form of an error: the bus's own errors in full, of others only kind and place. Their text
    may quote a request.
    """
    if isinstance(error, BusError):
        return f"{kind_of(error)}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{kind_of(error)}{where}"
