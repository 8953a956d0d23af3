"""A client of muster.v1.Admin for operators (proto/muster/v1/admin.proto)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc.aio
from muster_proto.muster.v1 import admin_pb2
from muster_proto.si.v1 import si_pb2 as si

from muster_client.gateway_client import GatewayClient, refusal

# Longer than a gateway waits for the scheduler (GatewaySettings.registration_timeout_s), so that its answer arrives.
DEFAULT_TIMEOUT_S = 15.0
_SERVICE = "/muster.v1.Admin/"
_SEVERITIES = {
    admin_pb2.ConfigurationProblem.ERROR: "error",
    admin_pb2.ConfigurationProblem.WARNING: "warning",
}


@dataclass(frozen=True, slots=True)
class ConfigurationProblem:
    """A problem in a configuration.

    :param severity: error or warning.
    :param path: of the key, such as partitions[0].queues[1].resources.max.memory; "": of the whole.
    :param line: from 1, as ``column``; 0: no place in the text.
    """

    severity: str
    path: str
    line: int
    column: int
    message: str


@dataclass(frozen=True, slots=True)
class ConfigurationAnswer:
    """The outcome of a configuration update.

    :param accepted: True: the configuration is in force; False: the old one is.
    :param changes: the changes, one line each.
    """

    accepted: bool
    problems: tuple[ConfigurationProblem, ...]
    changes: tuple[str, ...]


def configuration_answer(response: admin_pb2.UpdateConfigurationResponse) -> ConfigurationAnswer:
    """Converts the answer's message."""
    problems = (
        ConfigurationProblem(
            _SEVERITIES.get(problem.severity, "unknown"), problem.path, problem.line, problem.column, problem.message
        )
        for problem in response.problems
    )
    return ConfigurationAnswer(response.accepted, tuple(problems), tuple(response.changes))


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A stream of an RM.

    :param kind: allocation, application, node or callback.
    :param gateway_id: the gateway that serves it.
    :param epoch: number of streams of its kind so far, with this one.
    :param sent_sequence: number of the last response sent on it; 0: none.
    """

    kind: str
    gateway_id: str
    epoch: int
    sent_sequence: int


@dataclass(frozen=True, slots=True)
class Quota:
    """What an RM has of something, and its limit.

    :param limit: 0: none.
    :param reached: something was refused for it a short while ago.
    """

    name: str
    used: int
    limit: int
    reached: bool


@dataclass(frozen=True, slots=True)
class ResourceManager:
    """An RM (muster.v1.ResourceManager).

    :param state: INIT, RUNNING, DISCONNECTED (every stream is lost) or STOPPED, since ``since_ns``, with ``reason``.
    :param held: an operator paused the RM; ``held_reason`` has the reason.
    :param extra_config: values of keys that may be secret are masked.
    :param generation: the generation of its answers: current or previous.
    :param callbacks: the questions and messages that its callback stream wants.
    :param description: the meaning of its state, and what to do.
    :param is_default: a request that names no RM means this one.
    :param identity: the name of the identity that registered it; "": not known.
    :param quotas: what it has, and may have.
    """

    rm_id: str
    state: str
    since_ns: int
    reason: str
    streams: tuple[OpenStream, ...]
    held: bool
    held_reason: str
    version: str
    policy_group: str
    build_info: Mapping[str, str]
    extra_config: Mapping[str, str]
    generation: str
    registered_ns: int
    registrations: int
    instance_uuid: str
    callbacks: tuple[str, ...]
    description: str = ""
    is_default: bool = False
    identity: str = ""
    quotas: tuple[Quota, ...] = ()


@dataclass(frozen=True, slots=True)
class Paused:
    """The outcome of a pause or resume. True if something changed.

    :param changed: False: the RM was already paused, or not paused.
    :param state: of the RM, since ``since_ns``.
    :param description: the meaning of its state, and what to do.
    """

    changed: bool
    state: str
    since_ns: int
    description: str

    def __bool__(self) -> bool:
        return self.changed


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The outcome of forgetting an RM.

    :param changed: False: the RM was already forgotten.
    :param allocations: number of allocations that ended with it.
    """

    changed: bool
    allocations: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The outcome of draining a node.

    :param changed: False: the node was already in this state.
    :param allocations: number of allocations on it.
    """

    changed: bool
    allocations: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of ending an application.

    :param changed: False: it was ending already.
    :param state: of the application: Failing, or Failed if nothing was left.
    :param allocations: number of allocations that the RM has to end.
    """

    changed: bool
    state: str
    allocations: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a state.

    :param json: as the REST endpoint under /ws/v1/explain gives it (docs/explain.md).
    :param sentences: the same for people.
    """

    json: bytes
    sentences: tuple[str, ...]

    @property
    def value(self) -> Any:
        """The parsed JSON."""
        return json.loads(self.json)


M = TypeVar("M")


class AdminClient(GatewayClient):
    """Asks one gateway, or several in turn.

    ::

        async with AdminClient("127.0.0.1:9090") as admin:
            answer = await admin.update_configuration("my-cluster", Path("queues.yaml").read_text())

    Parameters as of :class:`GatewayClient`.

    Every method raises AdminRefused if the gateway refuses the call, and AdminFailed if no answer comes in time.
    """

    async def update_configuration(
        self,
        rm_id: str,
        config: str,
        *,
        policy_group: str = "",
        extra_config: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> ConfigurationAnswer:
        """Gives an RM another configuration at run time, as a whole or not at all.

        :param config: YAML text; empty: the scheduler's default.
        """
        request = si.UpdateConfigurationRequest(
            rmID=rm_id, policyGroup=policy_group, config=config, extraConfig=extra_config
        )
        response = admin_pb2.UpdateConfigurationResponse.FromString
        return configuration_answer(await self._call("UpdateConfiguration", request, response, timeout_s))

    async def validate_configuration(
        self, rm_id: str, config: str, *, policy_group: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> ConfigurationAnswer:
        """Returns the answer that :meth:`update_configuration` would give now. Changes nothing."""
        request = si.UpdateConfigurationRequest(rmID=rm_id, policyGroup=policy_group, config=config)
        response = admin_pb2.UpdateConfigurationResponse.FromString
        return configuration_answer(await self._call("ValidateConfiguration", request, response, timeout_s))

    # ---- resource managers -----------------------------------------------------------------------------------------

    async def list_resource_managers(
        self, rm_id: str = "", *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> list[ResourceManager]:
        """Returns the RMs that have registered.

        :param rm_id: only this one; "": all.
        """
        request = admin_pb2.ListResourceManagersRequest(rm_id=rm_id)
        response = admin_pb2.ListResourceManagersResponse.FromString
        answer = await self._call("ListResourceManagers", request, response, timeout_s)
        return [_resource_manager(rm) for rm in answer.resource_managers]

    async def pause(self, rm_id: str, reason: str = "", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Paused:
        """Pauses an RM: Muster schedules nothing for it until it is resumed. The result is true if that changed
        anything.

        :param reason: for people; explanations show it.
        """
        request = admin_pb2.PauseResourceManagerRequest(rm_id=rm_id, reason=reason)
        response = admin_pb2.ResourceManagerAnswer.FromString
        return _paused(await self._call("PauseResourceManager", request, response, timeout_s))

    async def resume(self, rm_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Paused:
        """Lifts a pause. The result is true if there was one. A disconnected RM stays disconnected."""
        request = admin_pb2.ResumeResourceManagerRequest(rm_id=rm_id)
        response = admin_pb2.ResourceManagerAnswer.FromString
        return _paused(await self._call("ResumeResourceManager", request, response, timeout_s))

    async def forget(self, rm_id: str, *, force: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S) -> Forgotten:
        """Forgets an RM that will not come back: its applications and allocations end. Refused for an RM that is not
        stopped.

        :param force: forgets also an RM that is not stopped.
        """
        request = admin_pb2.ForgetResourceManagerRequest(rm_id=rm_id, force=force)
        response = admin_pb2.ForgetResourceManagerResponse.FromString
        answer = await self._call("ForgetResourceManager", request, response, timeout_s)
        return Forgotten(answer.changed, answer.allocations)

    async def drain_node(
        self,
        rm_id: str,
        node_id: str,
        *,
        partition: str = "",
        schedulable: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Drained:
        """Stops new allocations on a node; with ``schedulable``, allows them again. Running allocations stay."""
        request = admin_pb2.DrainNodeRequest(rm_id=rm_id, partition=partition, node_id=node_id, schedulable=schedulable)
        answer = await self._call("DrainNode", request, admin_pb2.DrainNodeResponse.FromString, timeout_s)
        return Drained(answer.changed, answer.allocations)

    async def end_application(
        self,
        rm_id: str,
        application_id: str,
        *,
        partition: str = "",
        reason: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Ended:
        """Ends an application: its asks go, and its RM is asked to end its allocations. Refused if the RM did not
        declare that it can (``extraConfig[muster.applications.end]``).

        :param reason: for people; the RM gets it with the application's state.
        """
        request = admin_pb2.EndApplicationRequest(
            rm_id=rm_id, partition=partition, application_id=application_id, reason=reason
        )
        answer = await self._call("EndApplication", request, admin_pb2.EndApplicationResponse.FromString, timeout_s)
        return Ended(answer.changed, answer.state, answer.allocations)

    async def dump_state(self, rm_id: str, *, timeout_s: float | None = None) -> AsyncGenerator[bytes, None]:
        """Yields the RM's whole state, as pieces of one JSON text (docs/admin.md).

        Raises if the dump breaks off; the pieces so far are no whole text. The dump ends early if the caller stops
        reading.

        :param timeout_s: for the whole dump; None: no limit.
        """
        call = self._channel.unary_stream(
            f"{_SERVICE}DumpState",
            request_serializer=admin_pb2.DumpStateRequest.SerializeToString,
            response_deserializer=admin_pb2.DumpStateResponse.FromString,
        )(admin_pb2.DumpStateRequest(rm_id=rm_id), timeout=timeout_s, metadata=self._sent())
        try:
            async for piece in call:
                yield piece.json
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error
        finally:
            call.cancel()

    # ---- explanations -----------------------------------------------------------------------------------------------

    async def explain_ask(
        self,
        rm_id: str,
        application_id: str,
        allocation_key: str,
        *,
        partition: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Explanation:
        """Explains why an ask is pending."""
        ask = admin_pb2.AskId(application_id=application_id, allocation_key=allocation_key)
        return await self._explain(admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, ask=ask), timeout_s)

    async def explain_when(
        self,
        rm_id: str,
        application_id: str,
        allocation_key: str,
        *,
        partition: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Explanation:
        """Estimates when a pending ask will start. Its ``state`` may be MAKING: then ask again."""
        ask = admin_pb2.AskId(application_id=application_id, allocation_key=allocation_key)
        return await self._explain(admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, when=ask), timeout_s)

    async def explain_application(
        self, rm_id: str, application_id: str, *, partition: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Explanation:
        """Explains an application's state, and why its asks are pending."""
        request = admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, application_id=application_id)
        return await self._explain(request, timeout_s)

    async def explain_queue(
        self, rm_id: str, queue: str, *, partition: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Explanation:
        """Compares a queue's usage with its guarantee and its max.

        :param queue: its path.
        """
        return await self._explain(admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, queue=queue), timeout_s)

    async def explain_node(
        self, rm_id: str, node_id: str, *, partition: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Explanation:
        """Explains whether a node takes allocations, which ones it has, and which pending asks would fit."""
        return await self._explain(
            admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, node_id=node_id), timeout_s
        )

    async def explain_preemption(
        self,
        rm_id: str,
        application_id: str,
        allocation_key: str,
        *,
        partition: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Explanation:
        """Explains why an allocation must go, and for which ask. ``application_id`` "": the key, or the UUID,
        identifies it.
        """
        victim = admin_pb2.AskId(application_id=application_id, allocation_key=allocation_key)
        request = admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, preemption=victim)
        return await self._explain(request, timeout_s)

    async def _explain(self, request: admin_pb2.ExplainRequest, timeout_s: float) -> Explanation:
        answer = await self._call("Explain", request, admin_pb2.ExplainResponse.FromString, timeout_s)
        return Explanation(answer.json, tuple(answer.sentences))

    async def _call(self, method: str, request: Any, response: Callable[[bytes], M], timeout_s: float) -> M:
        call = self._channel.unary_unary(
            f"{_SERVICE}{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response,
        )
        try:
            pending_call = call(request, timeout=timeout_s, metadata=self._sent())
            answer: M = await pending_call
            self._note_position(await pending_call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error
        return answer


def _resource_manager(rm: admin_pb2.ResourceManager) -> ResourceManager:
    return ResourceManager(
        rm_id=rm.rm_id,
        state=rm.state,
        since_ns=rm.since_ns,
        reason=rm.reason,
        streams=tuple(
            OpenStream(stream.kind, stream.gateway_id, stream.epoch, stream.sent_sequence) for stream in rm.streams
        ),
        held=rm.held,
        held_reason=rm.held_reason,
        version=rm.version,
        policy_group=rm.policy_group,
        build_info=dict(rm.build_info),
        extra_config=dict(rm.extra_config),
        generation=rm.generation,
        registered_ns=rm.registered_ns,
        registrations=rm.registrations,
        instance_uuid=rm.instance_uuid,
        callbacks=tuple(rm.callbacks),
        description=rm.description,
        is_default=rm.is_default,
        identity=rm.identity,
        quotas=tuple(Quota(quota.name, quota.used, quota.limit, quota.reached) for quota in rm.quotas),
    )


def _paused(answer: admin_pb2.ResourceManagerAnswer) -> Paused:
    return Paused(answer.changed, answer.state, answer.since_ns, answer.description)
