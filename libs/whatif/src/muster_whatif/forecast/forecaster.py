"""Makes forecasts for a service: each in a process of its own, one at a time, each used again for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

import structlog
from muster_runtime.child_process import ChildProcess
from muster_runtime.elapsed import elapsed_s
from muster_state.snapshot import Entry

from muster_whatif.errors import ForecastBusy, ForecastUnavailable
from muster_whatif.forecast import messages
from muster_whatif.forecast.messages import (
    AskEstimate,
    ComparisonResult,
    ForecastFailed,
    ForecastRequest,
    ForecastResult,
    RunTimeMessage,
)
from muster_whatif.forecast.run_time_model import RunTimeHistory
from muster_whatif.forecast.settings import ForecastSettings

log = structlog.get_logger(__name__)

_CHILD = "muster_whatif.forecast.forecast_main"
# Chance (``muster_runtime.watchdog``) of a child, in units of the processor time for a forecast, and beyond: it loads
# its modules first. The kernel ends it at twice that time. It has the lowest priority, so it may take long.
_CHANCE, _BEYOND_S = 2.0, 15.0


# Partition, application and key.
AskName = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ForecastInput:
    """What a forecast starts from.

    :ivar entries: of :func:`muster_state.snapshot.entries`; None: the state is too large.
    :ivar reasons: why each ask was pending, by partition, application and key.
    """

    now_ns: int
    entries: list[Entry] | None
    learnt: RunTimeHistory | None = None
    reasons: Mapping[AskName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForecastReply:
    """A forecast, or why there is none.

    :ivar at_ns: the time of the state.
    :ivar asks: the asks that were pending then; ``reasons``: why, both by partition, application and key.
    :ivar unknown: by partition, the running allocations whose length nobody knows; likewise the others.
    :ivar why: a sentence, if there is no forecast; else "".
    """

    at_ns: int
    asks: Mapping[AskName, AskEstimate]
    reasons: Mapping[AskName, str] = field(default_factory=dict)
    runs: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    declared: Mapping[str, int] = field(default_factory=dict)
    learnt: Mapping[str, int] = field(default_factory=dict)
    why: str = ""

    def of_application(self, partition: str, application_id: str) -> Iterator[tuple[AskEstimate, str]]:
        """Yields an application's asks, each with its reason: O(all asks)."""
        for name, estimate in self.asks.items():
            if name[1] == application_id and name[0] == partition:
                yield estimate, self.reasons.get(name, "")


@dataclass(frozen=True, slots=True)
class ComparisonReply:
    """Two futures, or why there are none.

    :ivar at_ns: the time of the state.
    :ivar compared: None: there are none.
    :ivar why: a sentence then; ``problems``: of the configuration, if that is the reason.
    """

    at_ns: int
    compared: ComparisonResult | None
    why: str = ""
    problems: tuple[str, ...] = ()


Answer = ForecastResult | ComparisonResult | ForecastFailed


class _Done(NamedTuple):
    """An answer, when it was made (monotonic seconds), and what it started from."""

    made_s: float
    answer: Answer
    at_ns: int
    reasons: Mapping[AskName, str]


Look = Callable[[], Awaitable[ForecastInput | None]]


class Forecaster:
    """See the module's docstring."""

    def __init__(self, settings: ForecastSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        # By RM, or RM and configuration.
        self._tasks: dict[tuple[str, str], asyncio.Task[_Done | None]] = {}
        self._made: dict[tuple[str, str], _Done] = {}
        self._child: ChildProcess[Any] | None = None
        self._closed = False

    async def forecast(self, rm_id: str, look: Look, since_ns: int = 0) -> ForecastReply | None:
        """Returns the forecast of an RM; None: it is still being made.

        :param look: takes the present state, when the forecast has its turn; None: the RM is not there any more.
        :param since_ns: an older state is not enough.

        Raises ForecastBusy and ForecastUnavailable.
        """
        completed = await self._answer((rm_id, ""), look, None, since_ns)
        if completed is None:
            return None
        answer = completed.answer
        if isinstance(answer, ForecastResult):
            asks = {(estimate.partition, estimate.application_id, estimate.key): estimate for estimate in answer.asks}
            return ForecastReply(
                completed.at_ns, asks, completed.reasons, answer.runs, answer.unknown, answer.declared, answer.learnt
            )
        return ForecastReply(completed.at_ns, {}, why=_why(answer))

    async def futures(self, rm_id: str, config: str, look: Look) -> ComparisonReply | None:
        """Returns the futures of an RM under its own and another configuration; None: they are still being made.

        Raises ForecastBusy and ForecastUnavailable.
        """
        completed = await self._answer((rm_id, sha256(config.encode()).hexdigest()), look, config, 0)
        if completed is None:
            return None
        answer = completed.answer
        if isinstance(answer, ComparisonResult):
            return ComparisonReply(completed.at_ns, answer)
        return ComparisonReply(
            completed.at_ns, None, _why(answer), answer.problems if isinstance(answer, ForecastFailed) else ()
        )

    async def close(self) -> None:
        """Ends the child, and what waits for it. No forecast begins after this."""
        self._closed = True
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def pid(self) -> int | None:
        """The process that makes a forecast now; None: none does."""
        return self._child.pid if self._child is not None else None

    async def _answer(self, key: tuple[str, str], look: Look, config: str | None, since_ns: int) -> _Done | None:
        cached = self._made.get(key)
        if cached is not None and cached.at_ns >= since_ns and elapsed_s() - cached.made_s < self._settings.reuse_s:
            return cached
        task = self._tasks.get(key)
        if task is None:
            if self._closed:
                raise ForecastUnavailable("no forecast is made: the service stops")
            if len(self._tasks) >= self._settings.waiting_max:
                raise ForecastBusy(f"{len(self._tasks)} forecasts are being made already: try again")
            self._tasks[key] = task = asyncio.create_task(self._make(key, look, config), name="forecast")
            task.add_done_callback(lambda task: self._ended(key, task))
        done, _ = await asyncio.wait([task], timeout=self._settings.wait_s)
        if not done or task.cancelled():
            return None
        if task.exception() is not None:
            raise ForecastUnavailable("the forecast failed, and the service's log says why: try again")
        completed = task.result()
        return completed if completed is not None and completed.at_ns >= since_ns else None  # else it had begun before

    def _ended(self, key: tuple[str, str], task: asyncio.Task[_Done | None]) -> None:
        """Forgets a task; logs its error once, however many requests wait for it, and if none does."""
        self._tasks.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("forecast failed", exc_info=error)

    async def _make(self, key: tuple[str, str], look: Look, config: str | None) -> _Done | None:
        async with self._turn:
            present = await look()
            if present is None:
                return None
            answer: Answer
            if present.entries is None:
                answer = ForecastFailed(f"the state is larger than {self._settings.state_bytes_max >> 20} MiB")
            else:
                answer = await self._by_child(present, config)
            now_s = elapsed_s()
            for stale_key in [
                stale_key for stale_key, old in self._made.items() if now_s - old.made_s >= self._settings.reuse_s
            ]:
                del self._made[stale_key]
            self._made[key] = done = _Done(now_s, answer, present.now_ns, present.reasons)
            return done

    async def _by_child(self, present: ForecastInput, config: str | None) -> Answer:
        settings = self._settings
        learnt = present.learnt
        samples_by_key = learnt.snapshot() if learnt is not None else {}
        situation = ForecastRequest(
            present.now_ns,
            1,
            settings.cpu_s,
            settings.memory_bytes,
            present.entries or [],
            [RunTimeMessage(*key, samples.ended, list(samples.lengths)) for key, samples in samples_by_key.items()],
            [
                (past_ask.came_ns, *past_ask.key, past_ask.application_id, dict(past_ask.quantities), *past_ask[4:])
                for past_ask in (learnt.came if learnt is not None else ())
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
                answer = await self._child.answer(_CHANCE * settings.cpu_s + _BEYOND_S)
            finally:
                child, self._child = self._child, None
                await child.end()
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: no thread, or a loop without sockets
            log.warning("forecast failed", error=error)
        return answer if answer is not None else ForecastFailed("its process ended before it was done")


def _why(answer: Answer) -> str:
    return answer.why if isinstance(answer, ForecastFailed) else "its process gave another answer"
