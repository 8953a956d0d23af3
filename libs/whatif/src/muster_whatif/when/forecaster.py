"""Makes forecasts for a service: each in a process of its own, one at a time, each used again for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import structlog
from muster_runtime.child_process import ChildProcess
from muster_state.snapshot import Entry

from muster_whatif.errors import ForecastBusy
from muster_whatif.when import messages
from muster_whatif.when.durations import Learnt
from muster_whatif.when.messages import Compared, Failed, LearntLengths, Made, OfAsk, Situation
from muster_whatif.when.settings import ForecastSettings

log = structlog.get_logger(__name__)

_CHILD = "muster_whatif.when.child"
# The child has the lowest priority: a busy machine may give it a small part of a processor.
_SLOWEST = 20.0
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Present:
    """What a forecast starts from.

    :ivar entries: of :func:`muster_state.snapshot.entries`; None: the state is too large.
    """

    now_ns: int
    entries: list[Entry] | None
    learnt: Learnt | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """A forecast, or why there is none.

    :ivar at_ns: the time of the state.
    :ivar asks: by partition, application and key.
    :ivar unknown: by partition, the running allocations whose length nobody knows; likewise the others.
    :ivar why: a sentence, if there is no forecast; else "".
    """

    at_ns: int
    asks: Mapping[tuple[str, str, str], OfAsk]
    runs: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    declared: Mapping[str, int] = field(default_factory=dict)
    learnt: Mapping[str, int] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class ToldFutures:
    """Two futures, or why there are none.

    :ivar at_ns: the time of the state.
    :ivar compared: None: there are none.
    :ivar why: a sentence then; ``problems``: of the configuration, if that is the reason.
    """

    at_ns: int
    compared: Compared | None
    why: str = ""
    problems: tuple[str, ...] = ()


Answer = Made | Compared | Failed
Look = Callable[[], Awaitable[Present]]


class Forecaster:
    """See the module's docstring."""

    def __init__(self, settings: ForecastSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        # By RM, or RM and configuration: (when it was made, time of the state, answer).
        self._tasks: dict[tuple[str, str], asyncio.Task[tuple[int, Answer]]] = {}
        self._made: dict[tuple[str, str], tuple[float, int, Answer]] = {}
        self._child: ChildProcess[Any] | None = None

    async def of(self, rm_id: str, look: Look, since_ns: int = 0) -> Told | None:
        """Returns the forecast of an RM; None: it is still being made.

        :param look: takes the present state, when the forecast has its turn.
        :param since_ns: an older state is not enough.

        Raises ForecastBusy.
        """
        found = await self._answer((rm_id, ""), look, None, since_ns)
        if found is None:
            return None
        at_ns, answer = found
        if isinstance(answer, Made):
            asks = {(each.partition, each.application_id, each.key): each for each in answer.asks}
            return Told(at_ns, asks, answer.runs, answer.unknown, answer.declared, answer.learnt)
        return Told(at_ns, {}, why=_why(answer))

    async def futures(self, rm_id: str, config: str, look: Look) -> ToldFutures | None:
        """Returns the futures of an RM under its own and another configuration; None: they are still being made.

        Raises ForecastBusy.
        """
        found = await self._answer((rm_id, sha256(config.encode()).hexdigest()), look, config, 0)
        if found is None:
            return None
        at_ns, answer = found
        if isinstance(answer, Compared):
            return ToldFutures(at_ns, answer)
        return ToldFutures(at_ns, None, _why(answer), answer.problems if isinstance(answer, Failed) else ())

    async def close(self) -> None:
        """Ends the child, and what waits for it."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def pid(self) -> int | None:
        """The process that makes a forecast now; None: none does."""
        return self._child.pid if self._child is not None else None

    async def _answer(
        self, key: tuple[str, str], look: Look, config: str | None, since_ns: int
    ) -> tuple[int, Answer] | None:
        made_s, at_ns, answer = self._made.get(key, (0.0, 0, None))
        if answer is not None and at_ns >= since_ns and time.monotonic() - made_s < self._settings.reuse_s:
            return at_ns, answer
        task = self._tasks.get(key)
        if task is None:
            if len(self._tasks) >= self._settings.waiting_max:
                raise ForecastBusy(f"{len(self._tasks)} forecasts are being made already: try again")
            self._tasks[key] = task = asyncio.create_task(self._make(key, look, config), name="forecast")
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        done, _ = await asyncio.wait([task], timeout=self._settings.wait_s)
        return task.result() if done and not task.cancelled() else None

    async def _make(self, key: tuple[str, str], look: Look, config: str | None) -> tuple[int, Answer]:
        async with self._turn:
            present = await look()
            answer: Answer
            if present.entries is None:
                answer = Failed(f"the state is larger than {self._settings.state_bytes_max >> 20} MiB")
            else:
                answer = await self._by_child(present, config)
            now_s = time.monotonic()
            for other in [each for each, (at_s, *_) in self._made.items() if now_s - at_s >= self._settings.reuse_s]:
                del self._made[other]
            self._made[key] = (now_s, present.now_ns, answer)
            return present.now_ns, answer

    async def _by_child(self, present: Present, config: str | None) -> Answer:
        settings = self._settings
        learnt = present.learnt
        known = learnt.known() if learnt is not None else {}
        situation = Situation(
            present.now_ns,
            1,
            settings.cpu_s,
            settings.memory_bytes,
            present.entries or [],
            [LearntLengths(*key, each.ended, list(each.lengths)) for key, each in known.items()],
            [
                (each.came_ns, *each.key, each.application_id, dict(each.quantities), *each[4:])
                for each in (learnt.came if learnt is not None else ())
            ],
            learnt.since_ns if learnt is not None else 0,
            config,
        )
        answer: Answer | None = None
        try:
            self._child = ChildProcess.spawn(_CHILD, messages.ToParent)
            try:
                channel = await self._child.connect()
                channel.send(situation)
                async with asyncio.timeout(_START_S + _SLOWEST * settings.cpu_s):
                    answer = await channel.receive()
            finally:
                child, self._child = self._child, None
                await child.end()
        except (OSError, TimeoutError, ValueError) as error:
            log.warning("forecast failed", error=error)
        return answer if answer is not None else Failed("its process ended before it was done")


def _why(answer: Answer) -> str:
    return answer.why if isinstance(answer, Failed) else "its process gave another answer"
