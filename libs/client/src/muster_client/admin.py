"""The operator's side of muster.v1.Admin (proto/muster/v1/admin.proto)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc.aio
from muster_proto.muster.v1 import admin_pb2
from muster_proto.si.v1 import si_pb2 as si

from muster_client.gateway_client import GatewayClient, refusal

# Above what a gateway waits for the scheduler (GatewaySettings.registration_timeout_s), so that its words arrive.
DEFAULT_TIMEOUT_S = 15.0
_SERVICE = "/muster.v1.Admin/"
_SEVERITIES = {
    admin_pb2.ConfigurationProblem.ERROR: "error",
    admin_pb2.ConfigurationProblem.WARNING: "warning",
}


@dataclass(frozen=True, slots=True)
class ConfigurationProblem:
    """What is wrong in a configuration.

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
    """What became of a configuration.

    :param accepted: it is in force; else the old one is.
    :param changes: what it changed, a line each.
    """

    accepted: bool
    problems: tuple[ConfigurationProblem, ...]
    changes: tuple[str, ...]


def configuration_answer(response: admin_pb2.UpdateConfigurationResponse) -> ConfigurationAnswer:
    """The wire's answer in the client's words."""
    problems = (
        ConfigurationProblem(_SEVERITIES.get(each.severity, "unknown"), each.path, each.line, each.column, each.message)
        for each in response.problems
    )
    return ConfigurationAnswer(response.accepted, tuple(problems), tuple(response.changes))


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A stream of an RM.

    :param kind: allocation, application, node or callback.
    :param gateway_id: where it is open.
    :param epoch: how many of its kind there were, this one included.
    :param sent_sequence: the last response that was sent on it; 0: none.
    """

    kind: str
    gateway_id: str
    epoch: int
    sent_sequence: int


@dataclass(frozen=True, slots=True)
class ResourceManager:
    """What is known of an RM (muster.v1.ResourceManager).

    :param state: INIT, RUNNING, PAUSED (every stream is lost) or STOPPED, since ``since_ns``, and why.
    :param held: an operator paused it, and why.
    :param extra_config: values of keys that may be secret are masked.
    :param generation: in whose words it is answered: current or previous.
    :param callbacks: what its callback stream wants.
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


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of a node.

    :param changed: False: it was so already.
    :param allocations: that are on it.
    """

    changed: bool
    allocations: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something is as it is.

    :param json: as the REST endpoint under /ws/v1/explain gives it (docs/explain.md).
    :param sentences: the same for people.
    """

    json: bytes
    sentences: tuple[str, ...]

    @property
    def value(self) -> Any:
        """The JSON, read."""
        return json.loads(self.json)


M = TypeVar("M")


class AdminClient(GatewayClient):
    """Asks one gateway, or several in turn.

    ::

        async with AdminClient("127.0.0.1:9090") as admin:
            answer = await admin.update_configuration("my-cluster", Path("queues.yaml").read_text())

    Parameters as of :class:`GatewayClient`.

    Every method raises AdminRefused when the gateway says no, AdminFailed when there is no answer in time.
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
        """Gives an RM another configuration while it runs: whole, or not at all.

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
        """What :meth:`update_configuration` would answer now; changes nothing."""
        request = si.UpdateConfigurationRequest(rmID=rm_id, policyGroup=policy_group, config=config)
        response = admin_pb2.UpdateConfigurationResponse.FromString
        return configuration_answer(await self._call("ValidateConfiguration", request, response, timeout_s))

    # ---- resource managers -----------------------------------------------------------------------------------------

    async def list_resource_managers(
        self, rm_id: str = "", *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> list[ResourceManager]:
        """The RMs that registered once.

        :param rm_id: only this one; "": all.
        """
        request = admin_pb2.ListResourceManagersRequest(rm_id=rm_id)
        response = admin_pb2.ListResourceManagersResponse.FromString
        found = await self._call("ListResourceManagers", request, response, timeout_s)
        return [_resource_manager(each) for each in found.resource_managers]

    async def pause(self, rm_id: str, reason: str = "", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Nothing more is decided for the RM until it is resumed. Whether that changed anything.

        :param reason: for people; shown in explanations.
        """
        request = admin_pb2.PauseResourceManagerRequest(rm_id=rm_id, reason=reason)
        response = admin_pb2.ResourceManagerAnswer.FromString
        return (await self._call("PauseResourceManager", request, response, timeout_s)).changed

    async def resume(self, rm_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Ends a pause. Whether there was one."""
        request = admin_pb2.ResumeResourceManagerRequest(rm_id=rm_id)
        response = admin_pb2.ResourceManagerAnswer.FromString
        return (await self._call("ResumeResourceManager", request, response, timeout_s)).changed

    async def drain_node(
        self,
        rm_id: str,
        node_id: str,
        *,
        partition: str = "",
        schedulable: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Drained:
        """Lets no more allocations on a node; or, with ``schedulable``, lets them again. What runs there stays."""
        request = admin_pb2.DrainNodeRequest(rm_id=rm_id, partition=partition, node_id=node_id, schedulable=schedulable)
        found = await self._call("DrainNode", request, admin_pb2.DrainNodeResponse.FromString, timeout_s)
        return Drained(found.changed, found.allocations)

    async def dump_state(self, rm_id: str, *, timeout_s: float | None = None) -> AsyncGenerator[bytes, None]:
        """Everything that is known of the RM, as pieces of one JSON text (docs/admin.md).

        A dump that breaks off raises: what came of it is no whole text. It ends early when its reader does.

        :param timeout_s: for all of it; None: as long as it takes.
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

    # ---- why -------------------------------------------------------------------------------------------------------

    async def explain_ask(
        self,
        rm_id: str,
        application_id: str,
        allocation_key: str,
        *,
        partition: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Explanation:
        """Why an ask is pending."""
        ask = admin_pb2.AskId(application_id=application_id, allocation_key=allocation_key)
        return await self._explain(admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, ask=ask), timeout_s)

    async def explain_application(
        self, rm_id: str, application_id: str, *, partition: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Explanation:
        """Where an application stands, and what its asks wait for."""
        request = admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, application_id=application_id)
        return await self._explain(request, timeout_s)

    async def explain_queue(
        self, rm_id: str, queue: str, *, partition: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Explanation:
        """Where a queue stands against its guarantee and its max.

        :param queue: its path.
        """
        return await self._explain(admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, queue=queue), timeout_s)

    async def explain_node(
        self, rm_id: str, node_id: str, *, partition: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Explanation:
        """Whether anything goes to a node, who is on it, and what it would have room for."""
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
        """Why an allocation must go, and for whom. ``application_id`` "": the key, or the UUID, says which."""
        held = admin_pb2.AskId(application_id=application_id, allocation_key=allocation_key)
        request = admin_pb2.ExplainRequest(rm_id=rm_id, partition=partition, preemption=held)
        return await self._explain(request, timeout_s)

    async def _explain(self, request: admin_pb2.ExplainRequest, timeout_s: float) -> Explanation:
        found = await self._call("Explain", request, admin_pb2.ExplainResponse.FromString, timeout_s)
        return Explanation(found.json, tuple(found.sentences))

    async def _call(self, method: str, request: Any, response: Callable[[bytes], M], timeout_s: float) -> M:
        call = self._channel.unary_unary(
            f"{_SERVICE}{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response,
        )
        try:
            answer: M = await call(request, timeout=timeout_s, metadata=self._sent())
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error
        return answer


def _resource_manager(found: admin_pb2.ResourceManager) -> ResourceManager:
    return ResourceManager(
        rm_id=found.rm_id,
        state=found.state,
        since_ns=found.since_ns,
        reason=found.reason,
        streams=tuple(OpenStream(each.kind, each.gateway_id, each.epoch, each.sent_sequence) for each in found.streams),
        held=found.held,
        held_reason=found.held_reason,
        version=found.version,
        policy_group=found.policy_group,
        build_info=dict(found.build_info),
        extra_config=dict(found.extra_config),
        generation=found.generation,
        registered_ns=found.registered_ns,
        registrations=found.registrations,
        instance_uuid=found.instance_uuid,
        callbacks=tuple(found.callbacks),
    )
