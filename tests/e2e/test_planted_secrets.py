"""Secrets in every text that an RM and an operator can send: no page, command, event or log entry shows them."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pyarrow.parquet
import pytest
import structlog
from e2e.gang_rig import PATIENCE_S, Muster, muster_here
from muster_bus.log import OutRecord
from muster_cli.main import run
from muster_client import Callbacks, ClientSettings, RmClient, application, ask, node, release
from muster_client.admin import AdminClient
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_rest.route import Media
from muster_rest.route_table import through_the_gateway
from muster_runtime import logs
from planted import Planted, every_form
from waiting import eventually

RM = "rm1"
PLACES = ("build", "extra", "node", "app", "ask", "yaml")
PLAIN = "plainly-hunter2"  # beside the name of a secret only
PLANTED = [*(each for where in PLACES for each in every_form(where)), Planted(PLAIN, PLAIN)]
SAMPLES = {
    "partition": "default",
    "queue": "root.a",
    "application": "app",
    "key": "waits",
    "allocation": "waits",
    "state": "active",
    "node": "n1",
    "user": "nobody",
    "group": "nogroup",
    "level": "info",
    "source": "vms",
}


def _texts(where: str) -> dict[str, str]:
    """Each form under a name that says nothing, and one plain text under a name that says all."""
    return {f"note{number}": each.text for number, each in enumerate(every_form(where))} | {"db.password": PLAIN}


def _queues() -> str:
    notes = "".join(f"    # {each.text}\n" for each in every_form("yaml") if "\n" not in each.text)
    return (
        f"partitions:\n  - name: default\n{notes}    queues:\n      - name: root\n        submitacl: '*'\n"
        f"        properties: {{registry.token: {PLAIN}}}\n        queues: [{{name: a}}, {{name: b}}]\n"
    )


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    root, out = logging.getLogger(), io.StringIO()
    before = structlog.get_config(), root.handlers[:], root.level
    logs.configure("debug", "json", out)
    yield out
    structlog.configure(**before[0])
    root.handlers[:], root.level = before[1], before[2]


@asynccontextmanager
async def _living(muster: Muster) -> AsyncIterator[RmClient]:
    """An RM with planted texts in everything that it may say, which an operator pauses."""
    message = every_form("ask")[0].text
    client = RmClient(
        muster.gateway,
        RM,
        config=_queues(),
        version=every_form("build")[0].text,
        build_info=_texts("build"),
        extra_config=_texts("extra"),
        callbacks=Callbacks(predicates=lambda _: f"no: {message}"),
        settings=ClientSettings(close_timeout_s=1, linger_s=0.2),
    )
    async with client, AdminClient(muster.gateway) as admin:
        await client.register()
        await client.send_nodes([node("n1", {"vcore": 4000}, attributes=_texts("node"))])
        await client.send_applications([application("app", "root.a", tags=_texts("app"))])
        await client.send_asks([ask("waits", "app", {"vcore": 1000}, tags=_texts("ask"))])
        await eventually(lambda: _shows(muster, "explain/pending", "no: "), "the predicate's refusal is explained")
        await admin.pause(RM, f"since {message}")
        yield client


async def _break(muster: Muster) -> None:
    """Two records that nobody can use go to the dead letters."""
    nodes = si.NodeRequest(rmID="nobody", nodes=[si.NodeInfo(nodeID="n", attributes=_texts("node"))])
    letter = pb.RequestEnvelope(rm_id="nobody", node=nodes.SerializeToString()).SerializeToString()
    writer = await muster.log.writer("stranger")
    for value in (letter, b"\xff" + letter):
        await writer.append(OutRecord(muster.topics.requests, muster.topics.partition_of("nobody"), b"nobody", value))
    await writer.close()
    await eventually(lambda: _dead_letters(muster, 2), "the records are dead letters")


async def _shows(muster: Muster, path: str, text: str) -> bool:
    async with httpx.AsyncClient(base_url=muster.http, timeout=PATIENCE_S) as http:
        return text in (await http.get(f"/ws/v1/{path}", params={"rm": RM})).text


async def _dead_letters(muster: Muster, count: int = 0) -> str:
    """All of them with their headers, as text; "" while there are fewer."""
    found = []
    for partition in range(muster.topics.partitions):
        reader = await muster.log.reader(muster.topics.dead_letters, partition)
        end = await reader.end_offset()
        while reader.position < end:
            found += await reader.read(1_000, 0.1)
        await reader.close()
    return repr([(letter.value, letter.headers) for letter in found]) if len(found) >= count else ""


async def _pages(muster: Muster) -> dict[str, str]:
    """Every route that can be read, by its path; and a check of a wrong configuration."""
    shown = {}
    async with httpx.AsyncClient(base_url=muster.http, timeout=PATIENCE_S) as http:
        for route in through_the_gateway():
            if route.method != "GET" or route.media is Media.FILE or re.search("stream$|pprof/|loglevel/", route.path):
                continue
            path = re.sub(r"\{(\w+)\}", lambda found: SAMPLES[found[1]], route.path)
            shown[path] = (await http.get(path, params={"rm": RM})).text
        text = _queues().replace("{name: a}", "{nam: a}")
        shown["validate-conf"] = (await http.post("/ws/v1/validate-conf", content=text)).text
    return shown


def _commands(muster: Muster, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    shown = {}
    at = ["--gateway", muster.gateway, "--rm", RM]
    for command in (
        ["admin", "rms", *at],
        ["admin", "rms", "--json", *at],
        ["admin", "dump", *at],
        ["explain", "ask", "app", "waits", *at],
        ["explain", "application", "app", *at],
        ["explain", "node", "n1", *at],
        ["events", "batch", *at],
        ["config", "show", "--set", f"publisher.dataset={PLANTED[0].text}"],
    ):
        run(command)
        captured = capsys.readouterr()
        shown[" ".join(command[:3])] = captured.out + captured.err
    return shown


def _history(directory: Path) -> str:
    return "".join(str(pyarrow.parquet.read_table(path).to_pylist()) for path in directory.rglob("*.parquet"))


async def test_no_door_shows_a_planted_secret(
    tmp_path: Path, logged: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    async with muster_here(tmp_path, ["publisher.parquet_roll_s=0.2"]) as muster:
        async with _living(muster) as rm:
            outputs = await _pages(muster)
            outputs |= await asyncio.to_thread(_commands, muster, capsys)
            await rm.send_releases([release("app", "waits", message=f"because of {every_form('ask')[0].text}")])
        await _break(muster)
        outputs |= {f"{path} again": shown for path, shown in (await _pages(muster)).items()}
        outputs["dead letters"] = await _dead_letters(muster)
    outputs["history"] = await asyncio.to_thread(_history, tmp_path)
    outputs["log"] = logged.getvalue()

    # What is masked is shown at all: else the test would see nothing.
    for door in (
        *(f"/ws/v1/partition/default/{page}" for page in ("nodes", "application/app", "nodes again")),
        *("/ws/v1/resource-managers", "/debug/fullstatedump", "explain ask app", "admin rms --gateway", "log"),
    ):
        assert "apikey ***" in outputs[door], door
    leaks = {
        (door, planted.text) for door, output in outputs.items() for planted in PLANTED if planted.hidden in output
    }
    assert leaks == set()
