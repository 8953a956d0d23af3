"""The operator's client: configuration updates and their answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import grpc
import pytest
from muster_client.admin import AdminClient, ConfigurationAnswer, ConfigurationProblem
from muster_client.errors import AdminFailed, AdminRefused
from muster_proto.muster.v1 import admin_pb2
from muster_proto.si.v1 import si_pb2 as si
from unit.client.admin_gateway import AdminGateway, running


@pytest.fixture
def gateway() -> Iterator[AdminGateway]:
    with running() as it:
        yield it


async def test_a_configuration_is_sent_as_it_is(gateway: AdminGateway) -> None:
    async with AdminClient(gateway.address, metadata=[("token", "t")]) as admin:
        answer = await admin.update_configuration("rm", "text", policy_group="g", extra_config={"a": "b"})
    assert answer == ConfigurationAnswer(True, (), ())
    ((request, metadata),) = gateway.asked
    assert request == si.UpdateConfigurationRequest(rmID="rm", policyGroup="g", config="text", extraConfig={"a": "b"})
    assert metadata["token"] == "t"


async def test_an_answer_is_plain_data(gateway: AdminGateway) -> None:
    problem = admin_pb2.ConfigurationProblem
    gateway.answer = admin_pb2.UpdateConfigurationResponse(
        changes=["one", "two"],
        problems=[
            problem(severity=problem.ERROR, path="a.b", line=3, column=4, message="bad"),
            problem(severity=problem.WARNING, message="odd"),
        ],
    )
    async with AdminClient(gateway.address) as admin:
        answer = await admin.update_configuration("rm", "text")
    problems = (ConfigurationProblem("error", "a.b", 3, 4, "bad"), ConfigurationProblem("warning", "", 0, 0, "odd"))
    assert answer == ConfigurationAnswer(False, problems, ("one", "two"))


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, AdminRefused),
        (grpc.StatusCode.INVALID_ARGUMENT, AdminRefused),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, AdminRefused),
        (grpc.StatusCode.INTERNAL, AdminRefused),
        (grpc.StatusCode.UNAVAILABLE, AdminFailed),
    ],
)
async def test_a_status_says_whether_to_try_again(
    gateway: AdminGateway, code: grpc.StatusCode, raised: type[AdminFailed | AdminRefused]
) -> None:
    gateway.answer = (code, "the gateway's words")
    async with AdminClient(gateway.address) as admin:
        with pytest.raises(raised) as caught:
            await admin.update_configuration("rm", "text")
    assert (caught.value.code, caught.value.details) == (code, "the gateway's words")


async def test_no_gateway_is_a_failure(gateway: AdminGateway) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with AdminClient(f"127.0.0.1:{closed.getsockname()[1]}") as admin:
            with pytest.raises(AdminFailed):
                await admin.update_configuration("rm", "text", timeout_s=2.0)
