"""muster.v1.Admin on grpc.aio: the operator's methods (proto/muster/v1/admin.proto). Bytes in and bytes out.

The service does not touch the RMs' streams, so an operator can administer a disconnected RM. Calls that change
something, or that the scheduler must judge, go to the scheduler over the log. Calls that only read go to the session
store and the view.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import structlog
from muster_bus.clock import Clock
from muster_runtime.caller import current
from muster_runtime.rm_status_text import RmFacts

from muster_gateway import admin_codec, metrics
from muster_gateway.admin_codec import EncodedCommand
from muster_gateway.admission import configuration_steps
from muster_gateway.codec import (
    CommandAnswer,
    CommandCode,
    ConfigurationAnswer,
    JudgedConfiguration,
    RequestCodec,
    encode_configuration_answer,
)
from muster_gateway.config_preparser import ConfigPreparser
from muster_gateway.errors import (
    GatewayStopping,
    NotFound,
    NotRegistered,
    OverLimit,
    PreconditionFailed,
    SessionStoreDown,
    ViewUnavailable,
    quote,
)
from muster_gateway.explanations import explain
from muster_gateway.metrics_codec import RmStatus
from muster_gateway.policy_group_warnings import GroupComparison
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.scheduler_rpc import SchedulerRpc
from muster_gateway.servicer import refuse, send_position
from muster_gateway.session_manager import SessionManager
from muster_gateway.sessions.contract import Session, SessionStore
from muster_gateway.settings import GatewaySettings
from muster_gateway.state_dump import StateDump
from muster_gateway.stream_fairness import StepTurns
from muster_gateway.view_client import ViewClient, path_of

log = structlog.get_logger(__name__)

SERVICE = "muster.v1.Admin"
_OK, _NOT_FOUND = 200, 404
# Dumps at the same time. Each makes the view render its whole state. (YuniKorn allows one at a time.)
_DUMPS_MAX = 4
# Sessions whose cursors are read at the same time. Each read takes a connection to the store, which streams also need.
_SESSIONS_AT_ONCE = 8
Call = Callable[[bytes], Awaitable[bytes]]


class AdminServicer:
    """The methods of muster.v1.Admin.

    :param facts: returns what this gateway adds to the record of an RM, by id.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        clock: Clock,
        codec: RequestCodec,
        session_manager: SessionManager,
        questions: SchedulerRpc,
        sessions: SessionStore,
        view: ViewClient,
        history: ViewClient,
        groups: GroupComparison,
        configs: ConfigPreparser,
        step_runner: StepTurns,
        facts: Callable[[str], RmFacts],
    ) -> None:
        self._settings, self._clock, self._codec = settings, clock, codec
        self._session_manager, self._questions, self._sessions, self._view = session_manager, questions, sessions, view
        self._history, self._groups, self._configs, self._step_runner = history, groups, configs, step_runner
        self._facts = facts
        self.stopping = False
        self._dumps = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns generic handlers without serialisers."""
        calls: dict[str, Call] = {
            "ValidateConfiguration": self.validate_configuration,
            "ListResourceManagers": self.list_resource_managers,
            "PauseResourceManager": self.pause,
            "ResumeResourceManager": self.resume,
            "ForgetResourceManager": self.forget,
            "DrainNode": self.drain_node,
            "EndApplication": self.end_application,
            "Explain": self.explain,
        }
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(name, call)) for name, call in calls.items()
        }
        methods["UpdateConfiguration"] = grpc.unary_unary_rpc_method_handler(self._update_configuration)
        methods["DumpState"] = grpc.unary_stream_rpc_method_handler(self._dump_state)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _handler(self, name: str, call: Call) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def handle(raw: bytes, context: Any) -> bytes:
            with metrics.admin_seconds.labels(name).time():
                try:
                    self._check_open()
                    answer = await call(raw)
                except asyncio.CancelledError:
                    raise
                except Exception as error:
                    await refuse(context, error, lambda status: metrics.admin_calls.labels(name, status))
            metrics.admin_calls.labels(name, "OK").inc()
            send_position(context)
            return answer

        return handle

    def _check_open(self) -> None:
        if self.stopping:
            raise GatewayStopping

    # ---- configurations --------------------------------------------------------------------------------------------

    async def _update_configuration(self, raw: bytes, context: Any) -> bytes:
        started_s = self._clock.monotonic()
        try:
            self._check_open()
            answer = await self.update_configuration(raw)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await refuse(context, error, metrics.configurations.labels)
        finally:
            metrics.configuration_seconds.observe(self._clock.monotonic() - started_s)
        metrics.configurations.labels("OK" if answer.accepted else "REFUSED").inc()
        send_position(context)
        return encode_configuration_answer(answer)

    async def update_configuration(self, raw: bytes) -> ConfigurationAnswer:
        """Puts a si.v1.UpdateConfigurationRequest to the scheduler. Returns the scheduler's answer, positive or
        negative.

        Raises InvalidRequest, OverLimit, NotRegistered, RmStopped, LogDown, SchedulerTimeout, SessionStoreDown.
        """
        # 1. admission
        rm_id, text, raw = await self._step_runner.run(
            current().identity.name, configuration_steps(raw, self._settings.limits)
        )
        # 2. the RM: the scheduler has no answer for an RM that is not registered
        await self._session_manager.check_active(rm_id)
        # 3. the configuration
        judged = await self._configs.parse(rm_id, text, len(raw))
        # 4. the log, and the scheduler's answer
        request_id = self._codec.new_configuration_id()
        record = self._codec.configuration(rm_id, request_id, raw, self._clock.now_ns(), judged)
        async with self._configs.admission_slot(judged):
            answer, at = await self._questions.call(ConfigurationAnswer, rm_id, request_id, record)
        # 5. the RM's entry for comparison, and the others of its policy group
        if answer.accepted:
            await self._session_manager.on_configured(rm_id, at, answer.member)
            answer = replace(answer, problems=answer.problems + await self._groups.warnings(rm_id, answer.member))
        log.info(
            "configuration update",
            rm_id=rm_id,
            accepted=answer.accepted,
            changes=len(answer.changes),
            problems=len(answer.problems),
        )
        return answer

    async def validate_configuration(self, raw: bytes) -> bytes:
        """Returns what :meth:`update_configuration` would answer, and applies nothing. Raises as that method."""
        rm_id, text, raw = await self._step_runner.run(
            current().identity.name, configuration_steps(raw, self._settings.limits)
        )
        await self._session_manager.check_active(rm_id)
        judged = await self._configs.parse(rm_id, text, len(raw))
        async with self._configs.admission_slot(judged):
            answer = await self._command(admin_codec.validate_command(rm_id, raw), judged)
        others = await self._groups.warnings(rm_id, answer.member) if answer.accepted else ()
        return admin_codec.encode_validated(replace(answer, problems=answer.problems + others))

    async def _admitted(self, raw: bytes) -> tuple[str, str, bytes]:
        """Judges an UpdateConfigurationRequest, in turn with other callers. Returns its RM, its text and its bytes for
        the log.
        """
        return await self._step_runner.run(current().identity.name, configuration_steps(raw, self._settings.limits))

    # ---- commands --------------------------------------------------------------------------------------------------

    async def pause(self, raw: bytes) -> bytes:
        """PauseResourceManager. Raises InvalidRequest and the errors of :meth:`_command`, as do the next two."""
        command = admin_codec.decode_pause(raw, self._settings.limits)
        return await self._changed(command, paused=True)

    async def resume(self, raw: bytes) -> bytes:
        """ResumeResourceManager."""
        command = admin_codec.decode_resume(raw, self._settings.limits)
        return await self._changed(command, paused=False)

    async def _changed(self, command: EncodedCommand, *, paused: bool) -> bytes:
        """Sets or lifts a pause. Answers with the RM's state, because a lifted pause alone does not make an RM run."""
        answer = await self._command(command)
        session = await self._session_manager.session(command.rm_id)
        return admin_codec.encode_changed(
            answer, session, self._clock.now_ns(), self._facts(command.rm_id), paused=paused
        )

    async def forget(self, raw: bytes) -> bytes:
        """ForgetResourceManager. Raises as :meth:`_command`; but a stopped or forgotten RM is allowed."""
        command = admin_codec.decode_forget(raw, self._settings.limits)
        await self._session_manager.begin_forget(command.rm_id, force=command.payload.forget.force)
        answer = await self._forget(command)
        if answer.code is CommandCode.NOT_FOUND:
            raise NotFound(answer.message)
        if answer.code is not CommandCode.OK:
            raise PreconditionFailed(answer.message)
        return admin_codec.encode_forgotten(answer)

    async def finish_forgetting(self, rm_id: str) -> None:
        """Finishes a forgetting that a gateway began before it died. The scheduler decides the outcome.

        (An RM that has registered meanwhile is not stopped, so it stays.) Raises OverLimit, LogDown, SchedulerTimeout,
        SessionStoreDown.
        """
        await self._forget(admin_codec.forget_command(rm_id))

    async def _forget(self, command: EncodedCommand) -> CommandAnswer:
        """Puts the command to the scheduler, then updates the session. If this gateway dies in between, a sweep asks
        again.
        """
        request_id = self._codec.new_request_id()
        record = self._codec.command(command.rm_id, request_id, command.payload, self._clock.now_ns())
        answer, at = await self._questions.call(CommandAnswer, command.rm_id, request_id, record)
        log.info("command", what=command.name, rm_id=command.rm_id, code=answer.code.name, changed=answer.changed)
        if answer.code is CommandCode.NOT_POSSIBLE:
            await self._session_manager.abort_forget(command.rm_id)
        else:
            await self._session_manager.complete_forget(command.rm_id, at)
        return answer

    async def drain_node(self, raw: bytes) -> bytes:
        """DrainNode."""
        command = admin_codec.decode_drain(raw, self._settings.limits)
        return admin_codec.encode_drained(await self._command(command))

    async def end_application(self, raw: bytes) -> bytes:
        """EndApplication."""
        command = admin_codec.decode_end(raw, self._settings.limits)
        return admin_codec.encode_ended(await self._command(command))

    async def _command(self, command: EncodedCommand, judged: JudgedConfiguration | None = None) -> CommandAnswer:
        """Puts a command to the scheduler. Raises NotRegistered, RmStopped, NotFound, PreconditionFailed, OverLimit,
        LogDown, SchedulerTimeout, SessionStoreDown.
        """
        await self._session_manager.check_active(command.rm_id)
        answer = await self._call_scheduler(command, judged)
        log.info("command", what=command.name, rm_id=command.rm_id, code=answer.code.name, changed=answer.changed)
        if answer.code is CommandCode.NOT_FOUND:
            raise NotFound(answer.message)
        if answer.code is CommandCode.NOT_POSSIBLE:
            raise PreconditionFailed(answer.message)
        return answer

    async def _call_scheduler(
        self, command: EncodedCommand, judged: JudgedConfiguration | None = None
    ) -> CommandAnswer:
        request_id = self._codec.new_request_id()
        record = self._codec.command(command.rm_id, request_id, command.payload, self._clock.now_ns(), judged)
        answer, _ = await self._questions.call(CommandAnswer, command.rm_id, request_id, record)
        return answer

    # ---- reads ------------------------------------------------------------------------------------------------------

    async def list_resource_managers(self, raw: bytes) -> bytes:
        """ListResourceManagers. Raises InvalidRequest, NotRegistered, SessionStoreDown, ViewUnavailable, OverLimit."""
        rm_id = admin_codec.decode_list(raw, self._settings.limits)
        sees = current().read_scope().can_read_rm
        sessions = [await self._session_manager.session(rm_id)] if rm_id else await self._session_manager.all_sessions()
        sessions = [session for session in sessions if sees(session.rm_id)]
        return admin_codec.encode_resource_managers(await self._describe_rms(sessions, rm_id))

    async def explain(self, raw: bytes) -> bytes:
        """Explain. Raises InvalidRequest, NotRegistered, NotFound, SessionStoreDown, ViewUnavailable, OverLimit."""
        target = admin_codec.decode_explain(raw, self._settings.limits)
        await self._session_manager.session(target.rm_id)
        explanation, sentences = await explain(self._view, self._history, target)
        return admin_codec.encode_explained(explanation, sentences)

    async def _describe_rms(self, sessions: list[Session], rm_id: str) -> list[dict[str, Any]]:
        """Describes RMs from their sessions and the view's answer.

        :param rm_id: the wanted RM; "": all.
        """
        answer = await self._view.get(path_of("resource-managers"), rm_id)
        if answer.status not in (_OK, _NOT_FOUND):
            raise ViewUnavailable(f"the view answers with HTTP status {answer.status}: try again")
        registered = {rm["rmID"]: rm for rm in answer.json()} if answer.status == _OK else {}
        living = await self._sessions.live_gateways()
        managers: list[dict[str, Any]] = []
        now_ns = self._clock.now_ns()
        for start in range(0, len(sessions), _SESSIONS_AT_ONCE):
            some = sessions[start : start + _SESSIONS_AT_ONCE]
            cursors = await asyncio.gather(*(self._sessions.cursors(session.rm_id) for session in some))
            managers += (
                admin_codec.resource_manager(
                    session, sent, living, registered.get(session.rm_id), now_ns, self._facts(session.rm_id)
                )
                for session, sent in zip(some, cursors, strict=True)
            )
        return managers

    async def status(self, rm_id: str, paused: bool) -> RmStatus | None:
        """The state of an RM by its session; None: it has none, or the store does not answer."""
        try:
            session = await self._session_manager.session(rm_id)
        except (NotRegistered, SessionStoreDown):
            return None
        now_ns, facts = self._clock.now_ns(), self._facts(rm_id)
        description = admin_codec.described(session, now_ns, facts, paused=paused)
        return RmStatus(RmLifecycleState(session.state).name, session.since_ns, description)

    async def _dump_state(self, raw: bytes, context: Any) -> None:
        name = "DumpState"
        try:
            self._check_open()
            await self._view.wait_for_position()
            with metrics.admin_seconds.labels(name).time(), self._dump_slot():
                async for piece in self.dump_state(raw):
                    await context.write(admin_codec.encode_piece(piece))
        except asyncio.CancelledError:
            metrics.admin_calls.labels(name, "CANCELLED").inc()
            raise
        except Exception as error:
            await refuse(context, error, lambda status: metrics.admin_calls.labels(name, status))
        metrics.admin_calls.labels(name, "OK").inc()

    @contextmanager
    def _dump_slot(self) -> Iterator[None]:
        if self._dumps >= _DUMPS_MAX:
            raise OverLimit(f"{self._dumps} dumps are made already, expected at most {_DUMPS_MAX} at once: try again")
        self._dumps += 1
        try:
            yield
        finally:
            self._dumps -= 1

    async def dump_state(self, raw: bytes) -> AsyncIterator[bytes]:
        """Yields DumpState's text in pieces. Raises InvalidRequest, NotFound, SessionStoreDown, ViewUnavailable,
        OverLimit.
        """
        rm_id = admin_codec.decode_dump(raw, self._settings.limits)
        try:
            session = await self._session_manager.session(rm_id)
        except NotRegistered:
            raise NotFound(f"rmID {quote(rm_id)} is not known") from None
        (manager,) = await self._describe_rms([session], rm_id)

        async def ask_rm() -> CommandAnswer:
            return await self._call_scheduler(admin_codec.dump_command(rm_id))

        rm_query = ask_rm if session.state is not RmLifecycleState.STOPPED else None
        async for piece in StateDump(self._view, rm_id, manager, self._clock.now_ns(), rm_query).pieces():
            self._check_open()
            yield piece
