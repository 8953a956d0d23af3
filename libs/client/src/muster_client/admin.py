"""The operator's side of muster.v1.Admin (proto/muster/v1/admin.proto)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

import grpc
import grpc.aio
from muster_proto.muster.v1 import admin_pb2
from muster_proto.si.v1 import si_pb2 as si

from muster_client.errors import AdminFailed, AdminRefused
from muster_client.stream import Metadata

# Above what a gateway waits for the scheduler (GatewaySettings.registration_timeout_s), so that its words arrive.
DEFAULT_TIMEOUT_S = 15.0
_SERVICE = "/muster.v1.Admin/"
# Nothing is wrong with the request: the same one may be sent again.
_TRY_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
    }
)
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


class AdminClient:
    """Asks one gateway, or several in turn.

    ::

        async with AdminClient("127.0.0.1:9090") as admin:
            answer = await admin.update_configuration("my-cluster", Path("queues.yaml").read_text())

    :param address: a gRPC target, as of :class:`RmClient`.
    :param credentials: of the channel; None: plain text.
    :param metadata: sent with every call (a token, say).

    Every method raises AdminRefused when the gateway says no, AdminFailed when there is no answer in time.
    """

    def __init__(
        self, address: str, *, credentials: grpc.ChannelCredentials | None = None, metadata: Metadata = ()
    ) -> None:
        self._metadata = metadata
        options = [("grpc.max_send_message_length", -1)]  # the gateway's limit is the one that counts
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options)

    async def __aenter__(self) -> AdminClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

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
        call = self._channel.unary_unary(
            f"{_SERVICE}UpdateConfiguration",
            request_serializer=si.UpdateConfigurationRequest.SerializeToString,
            response_deserializer=admin_pb2.UpdateConfigurationResponse.FromString,
        )
        try:
            answer = await call(request, timeout=timeout_s, metadata=grpc.aio.Metadata(*self._metadata))
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
            raise (AdminFailed if code in _TRY_AGAIN else AdminRefused)(code, details) from error
        return configuration_answer(answer)

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()
