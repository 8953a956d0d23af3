"""Metrics in Prometheus's text format.

They are rendered beside the event loop, once for all readers. The metrics of two processes are merged into one answer:
it has each family once. If both processes have a family, counts are added up, and of gauges the first process's values
count. The second process's metrics about itself get names of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from prometheus_client import generate_latest

from muster_runtime.elapsed import elapsed_s

_ADDED_UP = ("counter", "histogram", "summary")
_OF_PROCESS = ("process_", "python_")
# After a rendering that took a second there is none for so many seconds. So readers cost at most a fifth of one core,
# which the thread shares with the event loop.
_REST = 4.0
# A collector may look at objects that the event loop changes meanwhile.
_TRIES = 3
# Readers that one exposition answers at the same time; each holds the whole text until its client has read it.
READERS_MAX = 64


class ExpositionBusy(Exception):
    """More readers than the limit wait for an answer, or read theirs."""


class SharedExposition:
    """One rendering for all that wait. A caller gets a rendering that began after its call.

    :param render: renders; it must not keep the event loop.
    """

    def __init__(
        self, render: Callable[[], Awaitable[bytes]] | None = None, monotonic_s: Callable[[], float] = elapsed_s
    ) -> None:
        self._render = render if render is not None else own_beside
        self._monotonic_s = monotonic_s
        self._next: asyncio.Task[bytes] | None = None
        self._running: asyncio.Task[bytes] | None = None
        self._rested_at_s = 0.0
        self._readers = 0

    async def __aenter__(self) -> bytes:
        """Returns the text for one reader, who reads it within the ``async with`` block. Raises TooManyReaders."""
        if self._readers >= READERS_MAX:
            raise ExpositionBusy(f"{self._readers} readers of metrics wait already: try again")
        self._readers += 1
        try:
            return await self._text()
        except BaseException:
            self._readers -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._readers -= 1

    async def _text(self) -> bytes:
        if self._next is None:
            self._next = asyncio.create_task(self._take(self._running), name="metrics")
        return await asyncio.shield(self._next)

    async def _take(self, before: asyncio.Task[bytes] | None) -> bytes:
        if before is not None and not before.done():
            await asyncio.wait({before})
        if (wait_s := self._rested_at_s - self._monotonic_s()) > 0:
            await asyncio.sleep(wait_s)
        # From here on, a new caller needs another rendering.
        self._running, self._next = self._next, None
        began_s = self._monotonic_s()
        try:
            return await self._render()
        finally:
            ended_s = self._monotonic_s()
            self._rested_at_s = ended_s + _REST * (ended_s - began_s)


async def own_beside() -> bytes:
    """Returns this process's metrics, rendered in a thread."""
    for _ in range(_TRIES):
        try:
            return await asyncio.to_thread(generate_latest)
        except RuntimeError:  # "dictionary changed size during iteration"
            continue
    return generate_latest()


def merged(first: bytes, second: bytes, prefix: str, added_up: Collection[str] = ()) -> bytes:
    """Merges two expositions.

    :param prefix: precedes the names of the second process's metrics about itself.
    :param added_up: gauges whose values are added up, as counts are.
    """
    families = _families(first, "")
    for name, (head, samples) in _families(second, prefix).items():
        if name not in families:
            families[name] = (head, samples)
            continue
        merged = families[name][1]
        adds = name in added_up or any(
            line.startswith("# TYPE ") and line.rpartition(" ")[2] in _ADDED_UP for line in head
        )
        for key, value in samples.items():
            if key not in merged:
                merged[key] = value
            elif adds:
                merged[key] = repr(float(merged[key]) + float(value))
    lines = [
        line
        for head, samples in families.values()
        for line in (*head, *(f"{key} {value}" for key, value in samples.items()))
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _families(text: bytes, prefix: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Returns families by name: the lines of the head, and the samples by name and labels."""
    families: dict[str, tuple[list[str], dict[str, str]]] = {}
    head: list[str] = []
    samples: dict[str, str] = {}
    for line in text.decode().splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            _, word, name, *tail = line.split(" ", 3)
            if prefix and name.startswith(_OF_PROCESS):
                name = prefix + name
            head, samples = families.setdefault(name, ([], {}))
            head.append(" ".join(("#", word, name, *tail)))
        elif line and not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            samples[prefix + key if prefix and key.startswith(_OF_PROCESS) else key] = value
    return families
