"""muster.v1.Admin on grpc.aio: what an operator asks (proto/muster/v1/admin.proto). Bytes in and bytes out.

It stands beside the RMs' streams and touches none of them: an RM that is away is administered all the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import structlog
from muster_bus.clock import Clock

from muster_gateway import metrics
from muster_gateway.admission import admit_configuration
from muster_gateway.codec import ConfigurationAnswer, RequestCodec, encode_configuration_answer
from muster_gateway.errors import GatewayStopping
from muster_gateway.life_keeper import LifeKeeper
from muster_gateway.questions import Questions
from muster_gateway.servicer import refuse
from muster_gateway.settings import GatewaySettings

log = structlog.get_logger(__name__)

SERVICE = "muster.v1.Admin"


class AdminServicer:
    """The methods of muster.v1.Admin."""

    def __init__(
        self, settings: GatewaySettings, clock: Clock, codec: RequestCodec, life: LifeKeeper, questions: Questions
    ) -> None:
        self._settings, self._clock, self._codec = settings, clock, codec
        self._life, self._questions = life, questions
        self.stopping = False

    def handlers(self) -> grpc.GenericRpcHandler:
        """Generic handlers without serialisers."""
        methods: dict[str, Any] = {
            "UpdateConfiguration": grpc.unary_unary_rpc_method_handler(self._update_configuration),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _update_configuration(self, raw: bytes, context: Any) -> bytes:
        started_s = self._clock.monotonic()
        try:
            if self.stopping:
                raise GatewayStopping
            answer = await self.update_configuration(raw)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await refuse(context, error, metrics.configurations.labels)
        finally:
            metrics.configuration_seconds.observe(self._clock.monotonic() - started_s)
        metrics.configurations.labels("OK" if answer.accepted else "REFUSED").inc()
        return encode_configuration_answer(answer)

    async def update_configuration(self, raw: bytes) -> ConfigurationAnswer:
        """A si.v1.UpdateConfigurationRequest, put to the scheduler; its answer, be it yes or no.

        Raises InvalidRequest, OverLimit, NotRegistered, RmStopped, LogDown, SchedulerSilent, SessionsDown.
        """
        # 1. admission
        rm_id = admit_configuration(raw, self._settings.limits)
        # 2. whose it is: of an RM that is not there the scheduler has nothing to say
        await self._life.must_live(rm_id)
        # 3. the log, and the scheduler's answer on it
        request_id = self._codec.new_configuration_id()
        record = self._codec.configuration(rm_id, request_id, raw, self._clock.now_ns())
        answer, _ = await self._questions.ask(ConfigurationAnswer, rm_id, request_id, record)
        log.info(
            "configuration update",
            rm_id=rm_id,
            accepted=answer.accepted,
            changes=len(answer.changes),
            problems=len(answer.problems),
        )
        return answer
