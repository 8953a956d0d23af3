"""A registration: goes to the log as a request; the scheduler's answer comes back over the log.

Simultaneous registrations of one rmID are all answered. The last one in the log is in force.
"""

from __future__ import annotations

import structlog
from muster_bus.clock import Clock
from muster_runtime.caller import current

from muster_gateway import metrics
from muster_gateway.admission import registration_steps
from muster_gateway.codec import ConfigProblem, RegistrationAnswer, RequestCodec
from muster_gateway.config_preparser import ConfigPreparser
from muster_gateway.errors import OverLimit, RegistrationRefused, quote
from muster_gateway.policy_group_warnings import GroupComparison
from muster_gateway.quotas import CallerQuotas
from muster_gateway.scheduler_rpc import SchedulerRpc
from muster_gateway.session_manager import SessionManager
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_fairness import StepTurns

log = structlog.get_logger(__name__)

# gRPC carries a status's message in a header. Clients accept 8 KiB of headers by default.
_MAX_MESSAGE_CHARS = 4_000


class RegistrationService:
    """Registers RMs. See the module's docstring."""

    def __init__(
        self,
        settings: GatewaySettings,
        clock: Clock,
        codec: RequestCodec,
        session_manager: SessionManager,
        questions: SchedulerRpc,
        groups: GroupComparison,
        configs: ConfigPreparser,
        quotas: CallerQuotas,
        step_runner: StepTurns,
    ) -> None:
        self._settings, self._clock, self._codec = settings, clock, codec
        self._session_manager, self._questions, self._groups = session_manager, questions, groups
        self._configs, self._quotas, self._step_runner = configs, quotas, step_runner

    async def register(self, raw: bytes) -> tuple[ConfigProblem, ...]:
        """Registers an RM. Returns the scheduler's warnings, and those about its policy group.

        Raises InvalidRequest, OverLimit, RegistrationRefused, LogDown, SchedulerTimeout, SessionStoreDown.
        """
        started_s = self._clock.monotonic()
        try:
            return await self._registered(raw)
        finally:
            metrics.registration_seconds.observe(self._clock.monotonic() - started_s)

    async def _registered(self, raw: bytes) -> tuple[ConfigProblem, ...]:
        # 1. admission
        rm_id, config, raw = await self._step_runner.run(
            current().identity.name, registration_steps(raw, self._settings.limits)
        )
        # 2. the configuration
        judged = await self._configs.parse(rm_id, config, len(raw))
        # 3. the log, and the scheduler's answer
        request_id = self._codec.new_request_id()
        quotas = await self._quotas.for_registration(rm_id)
        record = self._codec.registration(rm_id, request_id, raw, self._clock.now_ns(), judged, quotas)
        try:
            async with self._configs.admission_slot(judged):
                result, at = await self._questions.call(RegistrationAnswer, rm_id, request_id, record)
            # 4. the session
            if not result.accepted:
                text = refusal(rm_id, result.problems)
                raise OverLimit(text) if result.exhausted else RegistrationRefused(text)
            self._quotas.on_registered(rm_id, quotas)
            await self._session_manager.on_registered(rm_id, at, result.member, quotas.identity)
        finally:
            self._quotas.on_answered(rm_id)
        # 5. the others of its policy group
        problems = result.problems + await self._groups.warnings(rm_id, result.member)
        log.info("rm registered", rm_id=rm_id, warnings=len(problems))
        return problems


def refusal(rm_id: str, problems: tuple[ConfigProblem, ...]) -> str:
    """Returns one message with every problem and its place in the configuration, cut to the length of a status."""
    text = f"registration of rmID {quote(rm_id)} refused: {len(problems)} problem{'s' * (len(problems) != 1)}"
    for number, problem in enumerate(problems):
        line = f"\n{format_problem(problem)}"
        if len(text) + len(line) > _MAX_MESSAGE_CHARS:
            return f"{text}\n… and {len(problems) - number} more"
        text += line
    return text


def format_problem(problem: ConfigProblem) -> str:
    """Returns one line: severity, path, place, message."""
    location = f" (line {problem.line}, column {problem.column})" if problem.line else ""
    return f"{problem.severity}: {problem.path}{location}: {problem.message}"
