"""Questions to the scheduler over the log. A request carries an id, and its answer comes back with that id.

The number of waiting questions and the time of each are bounded. The scheduler may have carried out a question that was
not answered in time. So a caller must be able to repeat each of these questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from muster_bus.errors import BusError
from muster_bus.log import LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_runtime.backoff import before_deadline_s
from muster_runtime.caller import current
from muster_runtime.elapsed import elapsed_s

from muster_gateway.codec import CommandAnswer, ConfigurationAnswer, RegistrationAnswer
from muster_gateway.errors import LogDown, OverLimit, SchedulerTimeout, append_failure_text
from muster_gateway.response_delivery import ResponseTail
from muster_gateway.sessions.contract import Cursor
from muster_gateway.settings import GatewaySettings

# A caller with a deadline gets the answer that there is none so long before: the library's own text names no part.
_EARLIER_S = 0.5

A = TypeVar("A", RegistrationAnswer, ConfigurationAnswer, CommandAnswer)

# The name of each question in errors, and the advice if there is no answer.
_ERROR_TEXTS: dict[type, tuple[str, str]] = {
    RegistrationAnswer: ("registration", "register again"),
    ConfigurationAnswer: ("configuration update", "update it again"),
    CommandAnswer: ("command", "ask again"),
}


class SchedulerRpc:
    """Asks the scheduler. See the module's docstring.

    :param fault: returns why a request to a partition is not decided, in a clause; "": nothing is known.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        topics: Topics,
        writer: LogWriter,
        tails: list[ResponseTail],
        fault: Callable[[int], str] = lambda _: "",
    ) -> None:
        self._fault = fault
        self._settings, self._topics, self._writer, self._tails = settings, topics, writer, tails
        self._waiting = 0

    async def call(self, kind: type[A], rm_id: str, request_id: str, record: OutRecord) -> tuple[A, Cursor]:
        """Puts the request on the log. Returns the answer of this kind, and the cursor behind it.

        Raises OverLimit, LogDown, SchedulerTimeout.
        """
        if self._waiting >= self._settings.max_registrations_waiting:
            current().carried = False
            raise OverLimit(f"{self._waiting} requests wait for the scheduler already: try again")
        self._waiting += 1
        try:
            return await self._call(kind, rm_id, request_id, record)
        finally:
            self._waiting -= 1

    async def _call(self, kind: type[A], rm_id: str, request_id: str, record: OutRecord) -> tuple[A, Cursor]:
        subject, again = _ERROR_TEXTS[kind]
        tail = self._tails[self._topics.partition_of(rm_id)]
        answered = tail.register_call(rm_id, request_id)
        timeout_s = min(self._settings.registration_timeout_s, _left_s())
        queued = False
        try:
            async with asyncio.timeout(timeout_s):
                await self._writer.wait_writable()
                appended = self._writer.append(record)
                queued = True
                await appended
                answer, at = await answered
        except TimeoutError:
            if answered.done() and not answered.cancelled():  # it came first
                return self._checked(kind, request_id, answered.result())
            current().carried = queued
            fault = self._fault(tail.partition) or f"the scheduler did not answer within {timeout_s:g} s"
            raise SchedulerTimeout(f"{fault}: {again}") from None
        except BusError as error:
            current().carried = False  # (The log may have it nevertheless: then the trail has both entries.)
            raise LogDown(f"the log does not take the {subject} ({append_failure_text(error)}): {again}") from error
        finally:
            tail.cancel_call(request_id)
        return self._checked(kind, request_id, (answer, at))

    @staticmethod
    def _checked(kind: type[A], request_id: str, received: tuple[object, Cursor]) -> tuple[A, Cursor]:
        answer, at = received
        assert isinstance(answer, kind), f"request {request_id} is answered by a {type(answer).__name__}"
        current().note_position(answer.position)
        return answer, at


def _left_s() -> float:
    """Returns how long the present caller waits for an answer."""
    return before_deadline_s(current().ends_s - elapsed_s(), _EARLIER_S)
