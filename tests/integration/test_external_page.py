"""The plugin of docs/external-plugins.md, from the page alone: its code blocks become files and an installed package.

It runs with a Muster and an RM of each generation of the interface."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import documents
import pytest
from integration.native_rig import NativeUp, Rm, install
from muster_proto.si.v1 import si_pb2 as si
from waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = documents.page("external-plugins.md", "external-native.md")
KEPT = ROOT / "examples" / "external" / "acme"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def blocks() -> dict[str, str]:
    """Return the page's files by path: the code blocks whose first line names a path."""
    found = re.findall(r"```(?:python|toml)\n(# ([\w./-]+\.(?:py|toml))\n.*?)```", PAGE, re.DOTALL)
    return {path: text for text, path in found}


def test_the_page_and_the_example_are_the_same() -> None:
    kept = {
        str(file.relative_to(KEPT)): file.read_text(encoding="utf-8")
        for file in KEPT.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.name != "__init__.py"
    }
    assert blocks() == kept


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the page's package; return its directory."""
    source, place = tmp_path_factory.mktemp("acme"), tmp_path_factory.mktemp("installed")
    for path, text in blocks().items():
        (source / path).parent.mkdir(exist_ok=True)
        (source / path).write_text(text)
    how = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--target", str(place))
    command = (sys.executable, "-m", "pip", "install", *how, str(source))
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(each.name for each in (place / "acme_vms").glob("*.py")) == ["handler.py", "informer.py"]
    return place


class Manager:
    """The manager of the page's informer: hosts, and their changes."""

    def __init__(self, **hosts: dict[str, object]) -> None:
        self.said: list[dict[str, object]] = []
        for name, host in hosts.items():
            self.says(name, **host)
        manager = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                after = re.fullmatch(r"/changes\?after=(\d+)", self.path)
                begin = int(after[1]) if after else 0
                answer = {"hosts": manager.said[begin:], "cursor": str(len(manager.said))}
                body = json.dumps(answer).encode()
                self.send_response(200 if after or self.path == "/hosts" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def says(self, name: str, **host: object) -> None:
        self.said.append({"name": name, "revision": len(self.said) + 1, "ram_mib": 1 << 16, **host})


@pytest.mark.parametrize("generation", ["current", "previous"])
async def test_the_plugin_of_the_page_runs(generation: str, installed: Path, tmp_path: Path) -> None:
    manager = Manager(host1={"cores": 8})
    files = blocks()
    config = tmp_path / "acme.toml"
    config.write_text(files["acme.toml"])
    settings = files["settings.toml"].replace("7080", str(manager.server.server_port))
    up = NativeUp(tmp_path, settings, installed, "--event-handler", "acme", "--config-path", str(config))
    try:
        await up.start()
        async with Rm(up, generation) as rm:
            await rm.client.register()
            # 1. one handler gets the objects of the other manager and of the RM
            await rm.node("n1", 4)
            await rm.node("n2", 4, attributes={"state": "repair"})

            async def all_known() -> bool:
                return await up.free_cores("host1", "n1", "n2") == [7, 3, 3]

            await eventually(all_known, "a core of each is left alone")
            nodes = await up.nodes()
            assert [nodes[name]["schedulable"] for name in ("host1", "n1", "n2")] == [True, True, False]
            assert nodes["n1"]["sources"] == ["itself"]

            async def all_live() -> bool:
                sources = await up.get("/ws/v1/external")
                found = {each["source"]: (each["state"], each["objects"].get("node")) for each in sources}
                return found == {"hosts": ("LIVE", 1), "itself": ("LIVE", 2)}

            await eventually(all_live, "both sources are live")  # (A source is live a moment after its last object.)
            # 2. the handler refuses with a reason
            await rm.application("app")
            await rm.application("evil", user="mallory")
            assert rm.refused == {"evil": "event handler acme does not take it: user mallory may run nothing here"}
            # 3. accepted asks run
            await rm.ask("large", "app", 7)
            await rm.runs_all("large")
            await rm.ask("small", "app", 3)
            await rm.runs_all("large", "small")
            assert rm.runs == {"large": "host1", "small": "n1"}
            # 4. changes, and further statements of the handler
            await rm.node("n2", 4, si.NodeInfo.UPDATE, {"state": "ok"})

            async def is_mended() -> bool:
                return bool((await up.nodes())["n2"]["schedulable"])

            await eventually(is_mended, "the view follows: n2 is schedulable")
            await rm.application("tenant", **{"acme/quota": "0"})

            async def is_limited() -> bool:
                queue = await up.get("/ws/v1/partition/default/queue/root.work")
                return bool(queue["maxResource"].get("vcore") == 0)

            await eventually(is_limited, "the tenant has its quota")

            async def all_is_well() -> bool:
                return "informer" not in await up.health()

            await eventually(all_is_well, "health names no informer")
    finally:
        up.process.stop()
        manager.server.shutdown()
        manager.server.server_close()


# ---- kills and hangs -------------------------------------------------------------------------------------------------

NATIVE = """
[scheduler.external]
event_handler = "spare"
[scheduler.external.informers.itself]
kind = "native"
rm = "my-cluster"
timeout_s = {timeout_s}
"""

# A handler that reserves two cores of each node, keeps its calls, and fails as a node's attribute demands.
SPARE = """
import os, time
from dataclasses import replace
from muster_informers.plugin import DefaultEventHandler

class Spare(DefaultEventHandler):
    def add_node(self, node, *, initial):
        print("told", "initial" if initial else "new", node.node_id, flush=True)
        self.put(node)

    def update_node(self, old, new):
        self.put(new)

    def put(self, node):
        match node.attributes.get("do"):
            case "hang":
                time.sleep(3600)
            case "die":
                os._exit(3)
            case "raise":
                raise ValueError("no idea what this is")
        self.cache.put(replace(node, occupied={"vcore": 2000}))

def make_handler(cache, config, context):
    return Spare(cache)
"""


@pytest.fixture
def spare(tmp_path: Path) -> Path:
    place = tmp_path / "plugins"
    place.mkdir()
    install(place, "spare", SPARE, event_handlers="spare = spare:make_handler")
    return place


@pytest.mark.parametrize("generation", ["current", "previous"])
async def test_killed_and_started_again_what_the_handler_said_holds(
    generation: str, spare: Path, tmp_path: Path
) -> None:
    up = NativeUp(tmp_path, NATIVE.format(timeout_s=60), spare)
    try:
        await up.start()
        async with Rm(up, generation) as rm:
            await rm.client.register()
            await rm.node("n1", 4)
            await rm.application("app")
            await rm.ask("k1", "app", 1)
            await rm.runs_all("k1")
            # 1. the informers' process alone: nothing is refused, new requests wait for the next process
            os.kill(up.informers_pid(), signal.SIGKILL)
            await rm.node("n2", 4)
            assert rm.refused == {}
            # 2. the whole of Muster
            up.process.kill()
            await up.start()
            await rm.node("n3", 4)

            async def all_known() -> bool:
                return await up.free_cores("n1", "n2", "n3") == [1, 2, 2]

            await eventually(all_known, "two cores of each node are kept, once")
            await rm.ask("k2", "app", 2)
            await rm.ask("k3", "app", 2)
            await rm.runs_all("k2", "k3")
            assert {rm.runs[key] for key in ("k2", "k3")} == {"n2", "n3"}
        told = [line for line in up.process.log_file.read_text().splitlines() if line.startswith("told ")]
        assert told == [
            "told new n1",
            "told initial n1",
            "told new n2",
            "told initial n1",
            "told initial n2",
            "told new n3",
        ]
    finally:
        up.process.stop()


async def test_a_handler_that_fails_dies_or_hangs_stops_no_other_part(spare: Path, tmp_path: Path) -> None:
    up = NativeUp(tmp_path, NATIVE.format(timeout_s=8), spare)
    try:
        await up.start()
        async with Rm(up) as rm:
            await rm.client.register()
            await rm.node("n1", 4)
            await rm.application("app")
            # 1. it raises
            await rm.node("bad", 4, attributes={"do": "raise"})
            assert rm.refused["bad"] == "event handler spare failed: ValueError: no idea what this is"

            async def is_shown() -> bool:
                return "informer itself (native): event handler spare failed" in await up.health()

            await eventually(is_shown, "what the handler fails on is shown")
            # 2. it hangs, and its process is ended
            await rm.node("slow", 4, attributes={"do": "hang"})
            assert rm.refused["slow"] == "event handler spare did not answer within 8 s"
            # 3. requests meanwhile are answered at once, and allocations continue
            await rm.ask("k", "app", 1)

            await eventually(
                lambda: "did not answer within 8 s, a moment ago" in rm.refused.get("k", ""), "the ask is answered"
            )
            assert up.process.running
            assert await up.free_cores("n1") == [2]
    finally:
        up.process.stop()
