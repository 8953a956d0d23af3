"""Every example, started as a user starts it, at a real Muster: its output and exit code."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from muster_replay.local_process import free_ports, muster_command
from up import Up
from waiting import eventually

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GO_RM = EXAMPLES / "go-rm"
BUILD_TIMEOUT_S = 300  # grpc-go is compiled once per machine, on two busy cores
RUN_TIMEOUT_S = 180

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_TIMEOUT_S + 2 * RUN_TIMEOUT_S)]
needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain here: the Go example is not tried")

# The last three are no RMs; test_state_consumer.py and test_derive_faust.py run them.
NOT_HERE = {
    "python/wire.py",
    "python/balanced.py",
    "run_all.py",
    "python/objects.py",
    "python/consume_events.py",
    "python/faust_consumer.py",
}

# Beginnings of lines that each program prints, in this order, among others. Programs check the rest themselves.
PYTHON_TOLD = {
    "rm_minimal.py": [
        "run task-0 on node-1",
        "run task-1 on node-1",
        "run task-2 on node-1",
        "task-0 has ended on node-1",
    ],
    "gang.py": ["hold room for room-0", "end room-", "run worker-"],
    "python/current.py": [
        "   node        accepted: nodeID=node-1",
        "   node        rejected: nodeID=node-2 reason=",
        "   application rejected: applicationID=app-2 reason=",
        "   allocation  new: allocationKey=kube-proxy ",
        "   allocation  new: allocationKey=survivor ",
        "   application updated: applicationID=app-1 state=Running",
        "   allocation  rejectedAllocations: allocationKey=task-3 applicationID=app-2 reason=",
        "   allocation  released: partitionName=default applicationID=app-1 terminationType=STOPPED_BY_RM",
        "   allocation  released: partitionName=default applicationID=gang terminationType=PLACEHOLDER_REPLACED",
        "   allocation  new: allocationKey=worker ",
        "   node        accepted: nodeID=node-2",
        "12. ",
        "all as expected",
    ],
    "python/previous.py": [
        "   allocation  new: allocationKey=survivor UUID=9c2f6b1e nodeID=node-1",
        "   application updated: applicationID=app-1 state=Starting",
        "   application updated: applicationID=app-1 state=Running",
        *["   allocation  new: allocationKey=task UUID="] * 4,
        "   allocation  rejected: allocationKey=lost applicationID=nobody reason=",
        "   allocation  releasedAsks: partitionName=default applicationID=app-1 allocationKey=large",
        "   allocation  new: allocationKey=short UUID=",
        "   node        accepted: nodeID=node-1",
        "   application updated: applicationID=app-1 state=Completing",
        "all as expected",
    ],
    "python/callbacks.py": [
        "   callbacks   welcome: ",
        "   callbacks   predicates: ",
        "   callbacks   predicates: ",
        "   allocation  new: allocationKey=task-1 ",
        "   callbacks   predicates: ",
        "   callbacks   predicates: ",
        "   The resource manager refused node node-1: its disk is full.",
        "   The resource manager refused node node-2: its disk is full.",
        "   callbacks   configurations: id=add-a-queue",
        "all as expected",
    ],
}

GO_TASK = [
    "application app-1",
    "allocation task-1 on node-1",
    "application app-1 is Accepted",
    "application app-1 is Running",
    "released task-1",
    "left",
]
# The whole output of the program.
GO_TOLD = {
    "current": ["registered go-rm", "node node-1", *GO_TASK],
    "upstream-only": ["registered go-rm", "node node-1", *GO_TASK],
    "callbacks": [
        "registered go-rm",
        "callbacks open",
        "node node-1",
        "node node-2",
        "application app-1",
        "may task-1 go to node-1 true",
        "allocation task-1 on node-1",
        "may task-2 go to node-1 false",
        "may task-2 go to node-2 true",
        "allocation task-2 on node-2",
        *GO_TASK[2:5],
        "released task-2",
        "left",
    ],
    "previous": [
        "registered go-rm",
        "application app-1",
        "node node-1",
        "allocation survivor on node-1",
        "application app-1 is Accepted",
        "application app-1 is Starting",
        "application app-1 is Running",
        "allocation task on node-1",
        "allocation task on node-1",
        "released ask task",
        "released task",
        "left",
    ],
}
GO_PATIENCE = ["-timeout", "150s"]  # on a machine that has other work; a few seconds otherwise
GO_FLAGS = {
    "current": ["-callbacks=false"],
    "upstream-only": ["-callbacks=false", "-announce=false"],
    "callbacks": [],
    "previous": ["-generation", "previous"],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a `muster up` that all examples of this module use as different RMs."""
    muster = Up(tmp_path_factory.mktemp("muster"))
    try:
        asyncio.run(muster.start())
        yield muster.grpc
    finally:
        muster.process.stop()


@pytest.fixture(scope="module")
def go_rm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go example, built from the stubs that are committed."""
    program = tmp_path_factory.mktemp("go") / "go-rm"
    build = run("go", "build", "-buildvcs=false", "-o", str(program), ".", cwd=GO_RM, timeout_s=BUILD_TIMEOUT_S)
    assert build.returncode == 0, build.stderr
    return program


def run(*command: str, cwd: Path = ROOT, timeout_s: float = RUN_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)


def test_every_program_has_its_row() -> None:
    programs = {
        str(path.relative_to(EXAMPLES)) for pattern in ("*.py", "python/*.py") for path in EXAMPLES.glob(pattern)
    }
    assert programs - NOT_HERE == set(PYTHON_TOLD)


@pytest.mark.parametrize("program", sorted(PYTHON_TOLD))
def test_an_example_in_python(program: str, gateway: str) -> None:
    done = run(sys.executable, str(EXAMPLES / program), gateway)
    assert done.returncode == 0, done.stdout + done.stderr
    told = iter(done.stdout.splitlines())
    for beginning in PYTHON_TOLD[program]:
        assert any(line.startswith(beginning) for line in told), (
            f"{beginning!r} is not (or not there) in\n{done.stdout}"
        )


@pytest.mark.parametrize("program", ["current.py", "previous.py", "callbacks.py"])
def test_an_example_in_python_fails_without_a_scheduler(program: str) -> None:
    done = run(sys.executable, str(EXAMPLES / "python" / program), f"127.0.0.1:{free_ports(1)[0]}")
    assert done.returncode == 1
    assert "the call failed: UNAVAILABLE" in done.stderr


@needs_go
@pytest.mark.parametrize("way", sorted(GO_TOLD))
def test_the_example_in_go(way: str, go_rm: Path, gateway: str) -> None:
    done = run(str(go_rm), "-gateway", gateway, *GO_PATIENCE, *GO_FLAGS[way])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == GO_TOLD[way]


@needs_go
@pytest.mark.parametrize("by", ["a token", "a certificate"])
async def test_the_example_in_go_says_who_it_is(by: str, go_rm: Path, tmp_path: Path) -> None:
    authority, token = Authority(), "a-token-of-the-go-rm"
    authority.server().write(tmp_path / "server.pem", tmp_path / "server.key")
    authority.client("go-rm", dns="go-rm.test").write(tmp_path / "client.pem", tmp_path / "client.key")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "token").write_text(token)
    (tmp_path / "policy.toml").write_text('[[rule]]\nidentities = ["go-rm", "go-rm.test"]\nact = ["go-rm"]\n')
    settings: dict[str, object] = {
        "gateway.tls.certificate": tmp_path / "server.pem",
        "gateway.tls.key": tmp_path / "server.key",
        "gateway.policy_file": tmp_path / "policy.toml",
    }
    says = ["-tls-ca", str(tmp_path / "ca.pem")]
    if by == "a token":
        settings["gateway.tokens"] = json.dumps({"go-rm": {"role": "read", "token_file": str(tmp_path / "token")}})
        says += ["-token-file", str(tmp_path / "token")]
    else:
        settings["gateway.tls.client_ca"] = tmp_path / "ca.pem"
        says += ["-tls-cert", str(tmp_path / "client.pem"), "-tls-key", str(tmp_path / "client.key")]
    muster = Up(tmp_path, *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")))
    muster.process.start()
    try:
        certificate = ["--tls-cert", str(tmp_path / "client.pem"), "--tls-key", str(tmp_path / "client.key")]
        probe = muster_command("health", f"grpc://{muster.grpc}", "--tls-ca", str(tmp_path / "ca.pem"), *certificate)
        await eventually(lambda: run(*probe).returncode == 0, "it serves", every_s=0.2)
        program = (str(go_rm), "-gateway", muster.grpc, "-callbacks=false", *GO_PATIENCE)
        done = await asyncio.to_thread(run, *program, *says)
        assert done.returncode == 0, done.stdout + done.stderr
        unknown = await asyncio.to_thread(run, *program, *says[:2])
        assert unknown.returncode == 1, unknown.stdout
    finally:
        muster.process.kill()


@needs_go
def test_the_stubs_in_go_are_fresh() -> None:
    """The example's Makefile generates them from proto/ with pinned tools, and compares."""
    protoc = f"{sys.executable} -m grpc_tools.protoc"
    done = run("make", "-C", str(GO_RM), "stubs-check", f"PROTOC={protoc}", timeout_s=BUILD_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
