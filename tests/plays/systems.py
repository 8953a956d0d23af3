"""The two systems that get a play: YuniKorn's own core, and Muster behind its gateway."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

import httpx
import structlog
from e2e.gang_rig import MovableClock, Muster, muster_here
from google.protobuf import json_format
from scenario.lifecycles.peer import STREAMS, Heard, Peer, plain
from scenario.through_gateway import DEFAULT, rest_of

from bench.sockets import BINARIES, build
from plays.play import ALLOCATIONS, APPLICATIONS, CONFIRM, ELAPSE, ELAPSED_S, NODES, Play, Step

PLAYER = BINARIES / "player"
# Nothing is told twice and no time is lost by waiting for a sweep; the rest is as `muster up` has it.
SETTINGS = ("gateway.resend_window_s=0", "gateway.lease_ttl_s=0.5", "scheduler.worker.idle_wait_s=0.05")
# What decides in a batch, then what follows from it at once.
_ROUNDS, _ROUNDS_AFTER_TIME = 2, 3
_TELLER = Peer("", "", "current")


@dataclass
class Outcome:
    """What one step led to.

    :ivar heard: (method, item) in order.
    :ivar error: why a request was refused, or "".
    """

    heard: list[tuple[str, Heard]] = field(default_factory=list)
    error: str = ""


class System(Protocol):
    """A system that plays one play."""

    async def begin(self, play: Play) -> Outcome: ...

    async def take(self, play: Play, step: Step, message: Mapping[str, Any]) -> Outcome:
        """Takes one step, and returns when nothing is left to decide.

        :param message: the request's fields, without the rmID.
        """
        ...

    async def queues(self) -> Mapping[str, str]:
        """Returns the path of each application's queue, by the application's name."""
        ...


# ---- YuniKorn's core -------------------------------------------------------------------------------------------------


def player() -> Path:
    """The program, built if it has to be. Raises SystemExit without Go."""
    BINARIES.mkdir(parents=True, exist_ok=True)
    with (BINARIES / "player.lock").open("w") as lock:  # tests of several processes want it
        fcntl.flock(lock, fcntl.LOCK_EX)
        build("player")
    return PLAYER


class YuniKorn:
    """The core in a process of its own: it registers one resource manager in its life."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self._process, self._log = process, log
        self._queues: dict[str, str] = {}

    async def begin(self, play: Play) -> Outcome:
        request = {"rmID": "rm", "version": "1", "policyGroup": "queues", "config": play.config(muster=False)}
        return self._tell({"method": "RegisterResourceManager", "message": request})

    async def take(self, play: Play, step: Step, message: Mapping[str, Any]) -> Outcome:
        if step.kind == ELAPSE:
            return self._tell({"method": ELAPSE, "config": play.elapsed_config(), "reserves": play.reserves})
        method = ALLOCATIONS if step.kind == CONFIRM else step.kind
        request = _TELLER.message(STREAMS[method][0], {"rmID": "rm", **message})
        return self._tell({"method": method, "message": json_format.MessageToDict(request)})

    async def queues(self) -> Mapping[str, str]:
        return self._queues

    def _tell(self, line: Mapping[str, Any]) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            return Outcome(error=self._end())
        said = json.loads(answer)
        self._queues = said["queues"]
        outcome = Outcome(error=said.get("error", ""))
        for each in said["answers"]:
            response = _TELLER.classes[STREAMS[each["method"]][1]]()
            json_format.ParseDict(each["message"], response, ignore_unknown_fields=True)
            for one, items in response.ListFields():
                outcome.heard += [(each["method"], Heard(one.name, plain(item))) for item in items]
        return outcome

    def _end(self) -> str:
        """Why the process ended."""
        status = self._process.wait(60)
        self._log.seek(0)
        why = [line.strip() for line in self._log if line.startswith(("panic: ", "fatal error: "))]
        return "; ".join([f"the core ended with status {status}", *why])


@contextmanager
def yunikorn() -> Iterator[YuniKorn]:
    with TemporaryFile("w+") as log:
        process = subprocess.Popen([PLAYER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield YuniKorn(process, log)
        finally:
            process.kill()
            process.wait()
            with contextlib.suppress(BrokenPipeError):  # what it was told when it had ended
                process.stdin.close()
            process.stdout.close()


# ---- Muster ----------------------------------------------------------------------------------------------------------


class StoppedClock(MovableClock):
    """A clock that only the plays move. What is to be compared must not depend on how fast this machine is."""

    def __init__(self) -> None:
        super().__init__()
        self._began_ns = time.time_ns()

    def now_ns(self) -> int:
        return self._began_ns + round(self.ahead_s * 1e9)


class Gateway:
    """A resource manager of Muster: a new one for each play."""

    def __init__(self, muster: Muster, http: httpx.AsyncClient, rm_id: str) -> None:
        self._muster, self._http = muster, http
        self._peer = Peer(muster.gateway, rm_id, "current")
        self._barriers = 0

    async def begin(self, play: Play) -> Outcome:
        refused = await self._peer.register(version="1", policyGroup="queues", config=play.config(muster=True))
        return Outcome(error=refused)

    async def take(self, play: Play, step: Step, message: Mapping[str, Any]) -> Outcome:
        # (No two steps are at the same time: an order by age is an order of steps.)
        passed_s = ELAPSED_S if step.kind == ELAPSE else 0.001
        self._muster.clock.forward(passed_s)
        if step.kind != ELAPSE:
            await self._peer.send(ALLOCATIONS if step.kind == CONFIRM else step.kind, message)
        for _ in range(_ROUNDS_AFTER_TIME if step.kind == ELAPSE else _ROUNDS):
            await self._barrier()
        outcome = Outcome()
        for method, heard in self._peer.heard.items():
            outcome.heard += [(method, each) for each in heard if not _is_barrier(each)]
            heard.clear()
        return outcome

    async def queues(self) -> Mapping[str, str]:
        answer = await self._http.get(f"{DEFAULT}/applications/active", params={"rm": self._peer.rm_id})
        answer.raise_for_status()
        return {each["applicationID"]: each["queueName"] for each in answer.json()}

    async def _barrier(self) -> None:
        """Returns when all that was sent is decided and answered: what is refused is answered in order."""
        self._barriers += 1
        name = f"barrier-{self._barriers}"
        app = {"applicationID": name, "partitionName": "nowhere", "queueName": "root", "ugi": {"user": "ann"}}
        key = {"allocationKey": name, "applicationID": name, "partitionName": "default"}
        await self._peer.send(NODES, {"nodes": [{"nodeID": name, "action": "UPDATE"}]})
        await self._peer.send(APPLICATIONS, {"new": [app]})
        await self._peer.send(ALLOCATIONS, {"allocations": [{**key, "resourcePerAlloc": {"vcore": 1}}]})

        def answered() -> bool:
            return bool(self._peer.ended) or all(
                any(_is_barrier(each, name) for each in heard) for heard in self._peer.heard.values()
            )

        await self._peer.until(answered, lambda: f"{name} is answered; heard: {self._peer.heard}")
        if self._peer.ended:
            raise RuntimeError(f"Muster ended a stream: {self._peer.ended}")

    async def close(self) -> None:
        if NODES in self._peer.opened:
            await self._peer.shut_down()
        await self._peer.lose_connection()


def _is_barrier(heard: Heard, name: str = "barrier-") -> bool:
    names = [str(heard.item.get(one) or "") for one in ("nodeID", "allocationKey", "applicationID")]
    return any(each == name or (name.endswith("-") and each.startswith(name)) for each in names)


class Musters:
    """Muster, with a new resource manager for each play."""

    def __init__(self, muster: Muster, http: httpx.AsyncClient) -> None:
        self._muster, self._http = muster, http
        self._count = 0

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[Gateway]:
        self._count += 1
        one = Gateway(self._muster, self._http, f"rm-{self._count}")
        try:
            yield one
        finally:
            await one.close()


@asynccontextmanager
async def musters(directory: Path) -> AsyncIterator[Musters]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        async with muster_here(directory, SETTINGS, StoppedClock()) as muster, rest_of(muster) as http:
            yield Musters(muster, http)
    finally:
        structlog.configure(**before)
