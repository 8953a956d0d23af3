"""The course of a run: its phases one after the other, each with a limit, and what a phase waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Course:
    """See the module.

    :ivar name: the phase under way; "" before the first one.
    :ivar waits_for: what the phase waits for now, as a person reads it; "" if it only takes its time.
    :ivar took: (name, seconds, how it ended) of the phases that are over: "" or an error's name.
    """

    def __init__(self) -> None:
        self.name = ""
        self.waits_for = ""
        self.took: list[tuple[str, float, str]] = []
        self.began_s = time.monotonic()

    @property
    def now_s(self) -> float:
        """Seconds from the begin of the run."""
        return time.monotonic() - self.began_s

    @asynccontextmanager
    async def phase(self, name: str, limit_s: float) -> AsyncIterator[None]:
        """Raises AssertionError with what the phase waits for, if it is not over after its limit."""
        self.name, self.waits_for = name, ""
        began_s, end = time.monotonic(), ""
        print(f"{self.now_s:5.0f} s  {name} (at most {limit_s:.0f} s)", flush=True)
        try:
            async with asyncio.timeout(limit_s) as limit:
                yield
        except BaseException as error:
            end = "not in time" if limit.expired() else type(error).__name__
            if limit.expired():
                raise AssertionError(f"{name}: not over after {limit_s:.0f} s; {self.waits()}") from error
            raise
        finally:
            self.took.append((name, time.monotonic() - began_s, end))

    def waits(self) -> str:
        """What the phase waits for, in a line."""
        return f"it waits for {self.waits_for}" if self.waits_for else "it waits for nothing that is known"
