"""A registration: to the log as a request, and back when the scheduler has answered it there.

Registrations of one rmID at the same time are all answered; the one that is last in the log is in force.
"""

from __future__ import annotations

import asyncio

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import BusError
from muster_bus.log import LogWriter
from muster_bus.topics import Topics

from muster_gateway import metrics
from muster_gateway.admission import admit_registration
from muster_gateway.codec import Problem, RequestCodec
from muster_gateway.errors import LogDown, OverLimit, RegistrationRefused, SchedulerSilent, shown
from muster_gateway.life_keeper import LifeKeeper
from muster_gateway.response_reader import ResponseTail
from muster_gateway.settings import GatewaySettings

log = structlog.get_logger(__name__)

# gRPC carries a status' message in a header; clients take 8 KiB of headers by default.
_MAX_MESSAGE_CHARS = 4_000


class Registrar:
    """Registers RMs. See the module's words."""

    def __init__(
        self,
        settings: GatewaySettings,
        topics: Topics,
        clock: Clock,
        writer: LogWriter,
        codec: RequestCodec,
        life: LifeKeeper,
        tails: list[ResponseTail],
    ) -> None:
        self._settings, self._topics, self._clock = settings, topics, clock
        self._writer, self._codec, self._life, self._tails = writer, codec, life, tails
        self._waiting = 0

    async def register(self, raw: bytes) -> tuple[Problem, ...]:
        """Registers an RM; gives the scheduler's warnings.

        Raises InvalidRequest, OverLimit, RegistrationRefused, LogDown, SchedulerSilent, SessionsDown.
        """
        # 1. admission
        rm_id = admit_registration(raw, self._settings.limits)
        if self._waiting >= self._settings.max_registrations_waiting:
            raise OverLimit(f"{self._waiting} registrations wait for the scheduler already: try again")
        started_s = self._clock.monotonic()
        self._waiting += 1
        try:
            return await self._registered(rm_id, raw)
        finally:
            self._waiting -= 1
            metrics.registration_seconds.observe(self._clock.monotonic() - started_s)

    async def _registered(self, rm_id: str, raw: bytes) -> tuple[Problem, ...]:
        tail = self._tails[self._topics.partition_of(rm_id)]
        request_id = self._codec.new_request_id()
        answered = tail.expect(rm_id, request_id)
        timeout_s = self._settings.registration_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                # 2. the log
                await self._writer.ready()
                await self._writer.append(self._codec.registration(rm_id, request_id, raw, self._clock.now_ns()))
                # 3. the scheduler's answer
                result, at = await answered
        except TimeoutError:
            raise SchedulerSilent(f"the scheduler did not answer within {timeout_s:g} s: register again") from None
        except BusError as error:
            raise LogDown(f"the log does not take the registration ({type(error).__name__}): register again") from error
        finally:
            tail.forget(request_id)
        # 4. the session
        if not result.accepted:
            raise RegistrationRefused(refusal(rm_id, result.problems))
        await self._life.registered(rm_id, at)
        log.info("rm registered", rm_id=rm_id, warnings=len(result.problems))
        return result.problems


def refusal(rm_id: str, problems: tuple[Problem, ...]) -> str:
    """One message with every problem: where in the configuration, and what; cut when it is too long for a status."""
    text = f"registration of rmID {shown(rm_id)} refused: {len(problems)} problem{'s' * (len(problems) != 1)}"
    for number, problem in enumerate(problems):
        line = f"\n{describe(problem)}"
        if len(text) + len(line) > _MAX_MESSAGE_CHARS:
            return f"{text}\n… and {len(problems) - number} more"
        text += line
    return text


def describe(problem: Problem) -> str:
    """One line: severity, path, place, message."""
    place = f" (line {problem.line}, column {problem.column})" if problem.line else ""
    return f"{problem.severity}: {problem.path}{place}: {problem.message}"
