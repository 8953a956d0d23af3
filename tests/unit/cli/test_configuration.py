"""`muster config apply`: output and exit codes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from muster_cli.main import run
from muster_proto.muster.v1 import admin_pb2
from unit.client.admin_gateway import AdminGateway, running

Problem = admin_pb2.ConfigurationProblem


@pytest.fixture
def gateway() -> Iterator[AdminGateway]:
    with running() as it:
        yield it


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "queues.yaml"
    file.write_text("partitions: []\n")
    return file


def _apply(gateway: AdminGateway, file: Path, *more: str) -> int:
    return run(["config", "apply", str(file), "--gateway", gateway.address, "--rm", "my-rm", *more])


def test_the_changes_are_printed_line_by_line(
    gateway: AdminGateway, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answer = admin_pb2.UpdateConfigurationResponse(
        accepted=True, changes=["[default] root.a resources.max.vcore: 2 -> 5", "[default] root.b: new leaf"]
    )
    assert _apply(gateway, file) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "[default] root.a resources.max.vcore: 2 -> 5",
        "[default] root.b: new leaf",
        f"{file} is in force for my-rm: 2 changes",
    ]
    ((request, _),) = gateway.asked
    assert (request.rmID, request.config) == ("my-rm", "partitions: []\n")


def test_the_only_rm_is_meant(gateway: AdminGateway, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    managers = [admin_pb2.ResourceManager(rm_id=name) for name in ("a", "b")]
    gateway.answers["ListResourceManagers"] = admin_pb2.ListResourceManagersResponse(resource_managers=managers[:1])
    call = ["config", "apply", str(file), "--gateway", gateway.address]
    assert run(call) == 0
    assert "is in force for a" in capsys.readouterr().out
    assert [request.rmID for request, _ in gateway.asked] == ["a"]
    gateway.answers["ListResourceManagers"] = admin_pb2.ListResourceManagersResponse(resource_managers=managers)
    assert run(call) == 2
    assert capsys.readouterr().err == "muster: --rm: 2 resource managers are registered, expected one of a, b\n"
    gateway.answers["ListResourceManagers"] = (grpc.StatusCode.UNAVAILABLE, "away")
    assert run(call) == 1
    assert capsys.readouterr().err == f"muster: {gateway.address}: no answer: away (UNAVAILABLE)\n"
    assert len(gateway.asked) == 1


def test_no_change_is_said(gateway: AdminGateway, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _apply(gateway, file) == 0
    assert capsys.readouterr().out == f"{file} is in force for my-rm already: no change\n"


def test_more_changes_than_the_answer_holds(
    gateway: AdminGateway, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answer = admin_pb2.UpdateConfigurationResponse(accepted=True, changes=["x"] * 1000)
    assert _apply(gateway, file) == 0
    assert "1000 changes or more" in capsys.readouterr().out


def test_problems_have_a_place_that_editors_understand(
    gateway: AdminGateway, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answer = admin_pb2.UpdateConfigurationResponse(
        problems=[
            Problem(severity=Problem.ERROR, message="partition default: has 1 nodes"),
            Problem(severity=Problem.WARNING, path="partitions[0].queues[0]", line=7, column=2, message="odd [x]"),
            Problem(severity=Problem.ERROR, path="partitions[0].name", line=2, column=5, message="bad"),
        ]
    )
    assert _apply(gateway, file) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"error {file}:2:5: partitions[0].name: bad",
        f"warning {file}:7:2: partitions[0].queues[0]: odd [x]",
        f"error {file}: partition default: has 1 nodes",
        f"{file} is not applied: my-rm keeps its configuration",
    ]


def test_a_refused_call_is_one_line(gateway: AdminGateway, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.answer = (grpc.StatusCode.FAILED_PRECONDITION, "rmID 'my-rm' is not registered")
    assert _apply(gateway, file) == 2
    assert capsys.readouterr().err == (
        f"muster: {gateway.address}: rmID 'my-rm' is not registered (FAILED_PRECONDITION)\n"
    )


def test_a_call_without_an_answer_is_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        assert run(["config", "apply", str(file), "--gateway", address, "--rm", "my-rm", "--timeout-s", "2"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"muster: nothing answers at {address}: ")


def test_a_gateway_that_says_nothing_may_have_taken_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert run(["config", "apply", str(file), "--gateway", address, "--rm", "my-rm", "--timeout-s", "2"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"muster: {address}: ")
    assert printed.endswith("applying it again is safe\n")
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), (b"", "is empty, expected a queue configuration"), (b"\xff\xfe", "is not UTF-8 text")],
)
def test_a_file_that_cannot_be_used_is_not_sent(
    gateway: AdminGateway, tmp_path: Path, content: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "queues.yaml"
    if content is not None:
        file.write_bytes(content)
    assert _apply(gateway, file) == 2
    assert said in capsys.readouterr().err
    assert gateway.asked == []
