"""A child process for tests of the watchdog: it sends a beat after each piece of work, and hangs when it is told to."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

from muster_runtime.child_main import become_child, run_child
from muster_runtime.message_channel import Channel, Message


class Do(Message):
    """What the child does from now on: see :func:`serve`.

    :param nice: added to its niceness.
    :param where: a folder that it may use.
    """

    what: str
    nice: int = 0
    where: str = ""


class Beat(Message):
    """A sign of life."""


# Processor time of a piece of work.
PIECE_S = 0.4


async def serve(channel: Channel[Do]) -> int:
    do = await channel.receive()
    if do is None:
        raise EOFError
    os.nice(do.nice)
    for _ in range(3):
        channel.send(Beat())
        await channel.flush()
    while do.what == "work":
        end_s = time.process_time() + PIECE_S
        while time.process_time() < end_s:
            sum(range(1000))
        channel.send(Beat())
        await channel.flush()
        await asyncio.sleep(0.01)
    hang(do.what, Path(do.where))
    return 0


def hang(how: str, where: Path) -> None:
    """Never returns."""
    match how:
        case "busy":
            while True:
                pass
        case "deadlocked":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "reads":
            os.read(os.pipe()[0], 1)
        case "in the kernel":
            # A process that starts another one sleeps until that one has begun. This one never does: it first opens a
            # pipe that nobody writes.
            fifo = where / "fifo"
            os.mkfifo(fifo)
            actions = [(os.POSIX_SPAWN_OPEN, 3, str(fifo), os.O_RDONLY, 0)]
            os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)
        case _:
            raise AssertionError(how)


if __name__ == "__main__":
    run_child(become_child("a test"), Do, serve)
