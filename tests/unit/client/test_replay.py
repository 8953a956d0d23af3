"""The replay against a gateway and a REST front in this process: its counts, and the faults that it finds."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from muster_cli.main import run
from muster_client import ClientSettings
from muster_client.access import Access
from muster_client.clock import SystemClock
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.errors import ReplayFailed
from muster_replay.replay import ReplayOptions, main_replay, replay
from muster_replay.report import print_report
from muster_runtime.terminal import Screen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from unit.client.fake_gateway import FakeGateway, accept_everything
from unit.client.test_trace import write

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},4000,8,0,\n" for n in range(3))
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
PODS = HEAD + "".join(f"p{n},1000,1,0,,,LS,Running,{n},0,0\n" for n in range(10))


class Cluster:
    """First fit on the trace's nodes, and a REST front that shows the result."""

    def __init__(self) -> None:
        self.gateway = FakeGateway(self._answer)
        self.free: dict[str, int] = {}
        self.placed: dict[str, str] = {}
        self.waiting: list[str] = []
        self.http = ""
        self.token = ""
        self.server: uvicorn.Server
        self.reason = "NO_NODE_HAS_ROOM"
        self.asked_why = 0
        self.twist: Callable[[list[si.Allocation]], list[si.Allocation]] = lambda new: new

    def _answer(self, kind: str, request: Any) -> list[Any]:
        if kind == "node":
            self.free |= {item.nodeID: 4_000 for item in request.nodes}
        if kind != "allocation":
            return accept_everything(kind, request)
        new = [made for item in request.allocations if (made := self._place(item)) is not None]
        return [si.AllocationResponse(new=self.twist(new))]

    def _place(self, item: si.Allocation) -> si.Allocation | None:
        if item.allocationKey in self.placed or item.allocationKey in self.waiting:
            return None  # an update
        node = next((name for name, free in self.free.items() if free >= 1_000), None)
        if node is None or len(self.placed) >= 8:
            self.waiting.append(item.allocationKey)
            return None
        self.free[node] -= 1_000
        self.placed[item.allocationKey] = node
        made = si.Allocation()
        made.CopyFrom(item)
        made.nodeID = node
        return made

    async def pending(self, request: Request) -> JSONResponse:
        self.asked_why += 1
        assert request.query_params["rm"] == "openb"
        item = {"reason": self.reason, "message": "no node has 1000 vcore free", "queue": "root.openb.ls"}
        return JSONResponse({"pending": [{"allocationKey": key, **item} for key in self.waiting]})

    async def partitions(self, request: Request) -> JSONResponse:
        used = {"vcore": 1_000 * len(self.placed), "memory": 2**20 * len(self.placed)}
        capacity = {"capacity": {"vcore": 12_000, "memory": 24 * 2**20}, "usedCapacity": used}
        name = {"clusterId": "openb", "name": "default", "capacity": capacity, "totalContainers": len(self.placed)}
        return JSONResponse([{"clusterId": "other", "name": "default"}, name])

    async def events(self, request: Request) -> JSONResponse:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return JSONResponse({"status_code": 401}, 401)
        assert request.query_params["count"] == "1"
        highest = 41 if self.placed else 0
        return JSONResponse({"LowestID": 0, "HighestID": highest, "EventRecords": [{}] if self.placed else None})


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    c = Cluster()
    await c.gateway.start()
    routes = [
        Route("/ws/v1/explain/pending", c.pending),
        Route("/ws/v1/partitions", c.partitions),
        Route("/ws/v1/events/batch", c.events),
    ]
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    c.http = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning", lifespan="off"))
    c.server = server
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    yield c
    server.should_exit = True
    await serving
    await c.gateway.stop()


# For replays in which something never comes.
IN_VAIN = {"settle_timeout_s": 2.0, "follow_timeout_s": 1.0}


class Impatient(SystemClock):
    """A clock that jumps over any limit when nothing more is to come, so that a busy machine has its time before."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self._is_over = is_over

    def monotonic(self) -> float:
        return super().monotonic() + 10_000 * self._is_over()


def options(cluster: Cluster, **changes: Any) -> ReplayOptions:
    quick = ClientSettings(backoff_min_ms=5, backoff_max_ms=20, close_timeout_s=1)
    fixed = {"chunk": 3, "quiet_s": 0.2, "rest_timeout_s": 60.0, "client": quick}
    return ReplayOptions(**{"gateway": cluster.gateway.address, "http": cluster.http, **fixed, **changes})


async def test_every_task_is_placed_or_has_its_reason(cluster: Cluster, tmp_path: Path) -> None:
    report = await replay(write(tmp_path, NODES, PODS), options(cluster))
    assert report.good, (report.complaints, report.unaccounted)
    assert (report.tasks, report.placed, report.pending) == (10, 8, {"NO_NODE_HAS_ROOM": 2})
    assert report.examples == {"NO_NODE_HAS_ROOM": "no node has 1000 vcore free"}
    assert report.events_written == 42
    assert (report.utilisation["vcore"].used, report.utilisation_source) == (8_000, "REST")
    assert report.latency_p50_ms > 0
    assert report.placement_rate_per_s > 0
    assert json.loads(json.dumps(report.as_dict()))["utilisation"]["vcore"]["percent"] == 66.7
    assert cluster.gateway.registrations[0].config == "partitions: []\n"
    console = Screen(record=True, width=120)
    print_report(report, console)
    text = console.export_text()
    for words in (
        "tasks placed",
        "NO_NODE_HAS_ROOM, for example: no node has 1000",
        "placement rate",
        "p99",
        "cpu used",
        "events written",
        "42",
    ):
        assert words in text


async def test_a_lost_stream_in_the_middle_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.gateway.lose_before["allocation"] = 1
    cluster.gateway.lose_after["node"] = 0

    async def lose_again(sent: int) -> None:
        if sent == 6:
            cluster.gateway.lose_after["allocation"] = 0

    report = await replay(write(tmp_path, NODES, PODS), options(cluster), on_sent=lose_again)
    assert report.good, (report.complaints, report.unaccounted)
    assert report.placed == 8
    assert report.streams_lost >= 3


async def test_a_double_allocation_is_called_wrong(cluster: Cluster, tmp_path: Path) -> None:
    cluster.twist = lambda new: [*new, *new[:1]]
    report = await replay(write(tmp_path, NODES, PODS), options(cluster))
    assert not report.good
    assert any("allocated twice" in complaint for complaint in report.complaints)


async def test_an_overcommitted_node_is_called_wrong(cluster: Cluster, tmp_path: Path) -> None:
    def all_on_one(new: list[si.Allocation]) -> list[si.Allocation]:
        for item in new:
            item.nodeID = "n0"
        return new

    cluster.twist = all_on_one
    report = await replay(write(tmp_path, NODES, PODS), options(cluster))
    assert any("n0" in complaint for complaint in report.complaints)


async def test_a_task_that_vanishes_is_unaccounted_for(cluster: Cluster, tmp_path: Path) -> None:
    cluster.twist = lambda new: [item for item in new if item.allocationKey != "p3"]
    limits = {**IN_VAIN, "settle_timeout_s": 600.0}
    clock = Impatient(lambda: cluster.asked_why >= 8)
    report = await replay(write(tmp_path, NODES, PODS), options(cluster, **limits), clock=clock)
    assert not report.good
    assert report.unaccounted == ["p3"]


async def test_waiting_for_its_turn_is_not_an_end(cluster: Cluster, tmp_path: Path) -> None:
    cluster.reason = "WAITING_FOR_TURN"
    report = await replay(write(tmp_path, NODES, PODS), options(cluster, **IN_VAIN))
    assert not report.good


async def test_a_rejected_application_ends_the_replay_with_its_reason(cluster: Cluster, tmp_path: Path) -> None:
    def refuse(kind: str, request: Any) -> list[Any]:
        if kind != "application":
            return accept_everything(kind, request)
        return [
            si.ApplicationResponse(
                rejected=[
                    si.RejectedApplication(applicationID=item.applicationID, reason="no queue root.openb.ls")
                    for item in request.new
                ]
            )
        ]

    cluster.gateway.answer = refuse
    with pytest.raises(ReplayFailed, match=r"no queue root\.openb\.ls"):
        await replay(write(tmp_path, NODES, PODS), options(cluster))


async def test_a_silent_gateway_ends_the_replay_in_time(cluster: Cluster, tmp_path: Path) -> None:
    cluster.gateway.answer = lambda kind, request: []
    with pytest.raises(ReplayFailed, match="nodes: not all answered within"):
        await replay(write(tmp_path, NODES, PODS), options(cluster, answer_timeout_s=0.3))


async def test_a_steady_pace_is_kept(cluster: Cluster, tmp_path: Path) -> None:
    report = await replay(write(tmp_path, NODES, PODS), options(cluster, chunk=1, asks_per_s=50.0))
    assert report.good
    assert report.asks_s >= 9 / 50


async def test_the_command_gives_exit_code_and_json(cluster: Cluster, tmp_path: Path) -> None:
    trace, found = write(tmp_path, NODES, PODS), tmp_path / "report.json"
    arguments = (trace, cluster.gateway.address, cluster.http)
    assert await asyncio.to_thread(main_replay, *arguments, json_file=found) == 0
    assert json.loads(found.read_text())["placed"] == 8


async def test_the_command_names_what_is_wrong_with_the_trace(tmp_path: Path) -> None:
    console = Screen(record=True, width=200)
    assert await asyncio.to_thread(main_replay, tmp_path / "nowhere", console=console) == 2
    assert "nodes.csv" in console.export_text()


async def test_an_address_without_a_scheme_is_http(cluster: Cluster, tmp_path: Path) -> None:
    bare = cluster.http.removeprefix("http://")
    report = await replay(write(tmp_path, NODES, PODS), options(cluster, http=bare))
    assert report.good, (report.complaints, report.unaccounted)
    assert report.next_places["REST"].startswith(f"http://{bare}/ws/v1/")


@pytest.mark.parametrize("http", ["", "http://", "ftp://127.0.0.1:9080", "127.0.0.1:x", "127.0.0.1:9080?a=b"])
async def test_an_unusable_address_is_said_before_anything_is_sent(http: str, cluster: Cluster, tmp_path: Path) -> None:
    console = Screen(record=True, width=200)
    arguments = (write(tmp_path, NODES, PODS), cluster.gateway.address, http)
    assert await asyncio.to_thread(main_replay, *arguments, console=console) == 2
    assert f"http {http!r}: expected host:port or the URL" in console.export_text()
    assert not cluster.gateway.registrations


@pytest.mark.parametrize("listens", [True, False], ids=["no answer", "no listener"])
async def test_a_rest_front_that_is_not_there_is_said_before_anything_is_sent(
    cluster: Cluster, tmp_path: Path, *, listens: bool
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()  # takes connections, answers nothing
        http = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ReplayFailed, match=rf"REST front at http://{http} has not answered within .* nothing was"):
            await replay(write(tmp_path, NODES, PODS), options(cluster, http=http, rest_timeout_s=0.3))
    assert not cluster.gateway.registrations


async def test_a_rest_front_that_needs_a_token_gets_it_or_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    trace = write(tmp_path, NODES, PODS)
    cluster.token = "a-token-0123456789"
    with pytest.raises(
        ReplayFailed, match=r"answers 401 Unauthorized: expected a token .*--token-file or MUSTER_TOKEN"
    ):
        await replay(trace, options(cluster))
    assert not cluster.gateway.registrations
    report = await replay(trace, options(cluster, access=Access(token="a-token-0123456789")))
    assert report.good


async def test_a_rest_front_that_goes_away_ends_the_replay_in_time(cluster: Cluster, tmp_path: Path) -> None:
    async def end_rest(sent: int) -> None:
        cluster.server.should_exit = True

    limits = {"rest_silence_s": 0.5, "settle_timeout_s": 60.0}
    with pytest.raises(ReplayFailed, match=r"has not answered for .* of 10 tasks were placed"):
        await asyncio.wait_for(replay(write(tmp_path, NODES, PODS), options(cluster, **limits), on_sent=end_rest), 120)


async def test_the_report_alone_goes_to_standard_output(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path, NODES, PODS)
    command = ["replay-trace", str(trace), "--gateway", cluster.gateway.address, "--http", cluster.http, "--json", "-"]
    assert await asyncio.to_thread(run, command) == 0
    assert json.loads(capsys.readouterr().out)["placed"] == 8
    assert not (Path.cwd() / "-").exists()
