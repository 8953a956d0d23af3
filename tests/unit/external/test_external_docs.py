"""docs/external.md and docs/metrics.md say what is there: fields, metrics; and the code in them works."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from muster_bus.clock import ManualClock
from muster_scheduler.core.external import ExternalKind, ExternalNode
from muster_scheduler.external import informer as informer_module
from muster_scheduler.external.contract import (
    EVENT_HANDLERS_GROUP,
    INFORMERS_GROUP,
    EventHandler,
    HandlerContext,
    InformerContext,
)
from muster_scheduler.external.documents import fields_table, read_document
from muster_scheduler.external.errors import HandlerSettingsWrong, InformerSettingsWrong
from muster_scheduler.external.informer import SharedIndexInformer
from muster_scheduler.external.metrics import Metric
from prometheus_client import REGISTRY
from unit.external.faking import ManualTime, Recorder, settled

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "external.md").read_text(encoding="utf-8")
METRICS = (DOCS / "metrics.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def module_of(title: str) -> ModuleType:
    """The Python code of a section, run."""
    (code,) = re.findall(r"```python\n(.*?)```", section(title), re.DOTALL)
    module = ModuleType("documented")
    exec(compile(code, "docs/external.md", "exec"), module.__dict__)
    return module


def test_every_field_is_in_the_table() -> None:
    assert f"fields_table -->\n{fields_table()}\n<!-- end" in TEXT


def test_the_documents_can_be_read() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", section("Documents"), re.DOTALL)
    said = read_document(json.loads(text))
    assert said.what == ExternalNode("host-1", {"vcore": 32_000, "memory": 128 << 30})


def test_every_metric_is_explained_in_its_order() -> None:
    rows = re.findall(r"^\| `(muster_external_\w+)` \| (.+) \|$", METRICS, re.MULTILINE)
    exposed = {metric.name for metric in REGISTRY.collect()}
    assert exposed >= set(Metric)
    counters = {metric.name for metric in REGISTRY.collect() if metric.type == "counter"}
    assert [name for name, _ in rows] == [f"{each}_total" if each in counters else each for each in Metric]


def test_the_entry_points_are_those_of_the_registry() -> None:
    for title, group in (("Writing an informer", INFORMERS_GROUP), ("Writing an event handler", EVENT_HANDLERS_GROUP)):
        (text,) = re.findall(r"```toml\n(.*?)```", section(title), re.DOTALL)
        ((name, value),) = tomllib.loads(text)["project"]["entry-points"][group].items()
        module, _, factory = value.partition(":")
        assert name == "acme"
        assert f"# {module.replace('.', '/')}.py" in section(title)
        assert f"def {factory}(" in section(title)


def test_the_numbers_are_those_of_the_code() -> None:
    text = section("Writing an informer")
    assert f"at least every {informer_module.HEARTBEAT_S:g} s" in text
    assert f"(at least {3 * informer_module.HEARTBEAT_S:g} s)" in text
    defaults = {name: each.default for name, each in inspect.signature(SharedIndexInformer).parameters.items()}
    assert f"given up after {defaults['list_timeout_s']:g} s" in text
    assert f"({defaults['wait_min_s']:g} s, doubled up to {defaults['wait_max_s']:g} s)" in text


def test_every_method_of_a_handler_has_its_kind() -> None:
    kinds = re.search(r"For each kind \(([^)]*)\)", section("Writing an event handler"))
    assert kinds is not None
    assert {word.strip() for word in re.split(r",\s", kinds[1])} == set(ExternalKind)
    assert {name for name in vars(EventHandler) if not name.startswith("_")} == {
        f"{method}_{kind}" for method in ("add", "update", "delete") for kind in ExternalKind
    }


async def test_the_documented_informer_works() -> None:
    module = module_of("Writing an informer")
    context = InformerContext("acme", ManualClock())
    with pytest.raises(InformerSettingsWrong, match=r"informers\.acme\.url: expected an address"):
        module.make_informer({}, context)
    await module.make_informer({"url": "http://127.0.0.1:1"}, context).close()
    host = {"name": "h1", "revision": 1, "cores": 4, "ram_mib": 2}
    answers: dict[str, list[httpx.Response]] = {
        "/hosts": [
            httpx.Response(503),
            httpx.Response(200, json={"hosts": [host], "cursor": "c1"}),
            httpx.Response(200, json={"hosts": [], "cursor": "c9"}),
        ],
        "/changes": [
            httpx.Response(200, json={"hosts": [{**host, "revision": 2, "cores": 8}], "cursor": "c2"}),
            httpx.Response(410),
        ],
    }
    asked: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        waiting = answers[request.url.path]
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    time, handler = ManualTime(), Recorder()
    source = module.AcmeHosts("http://acme", httpx.MockTransport(answer))
    informer = SharedIndexInformer("acme", source, time.clock, sleep=time.sleep)
    informer.add_event_handler(handler)  # type: ignore[arg-type]
    running = asyncio.create_task(informer.run())
    await settled()
    assert informer.last_error == "/hosts: status 503"
    async with asyncio.timeout(10):
        while len(asked) < 5:
            await time.advance(0.1)
    await settled()
    assert asked[:5] == ["/hosts", "/hosts", "/changes?after=c1", "/changes?after=c2", "/hosts"]
    assert handler.told == [("add", "h1"), ("update", "h1"), ("delete", "h1")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_the_documented_handler_works() -> None:
    module = module_of("Writing an event handler")
    context = HandlerContext("acme", ManualClock())
    told: list[object] = []

    class Cache:
        source = "acme"

        def put(self, what: object) -> None:
            told.append(what)

    cache = Cache()
    handler = module.make_handler(cache, b"[spare]\nvcore = 500", context)
    handler.add_node(ExternalNode("h1", occupied={"vcore": 1}, attributes={"state": "repair"}), initial=True)
    assert told == [ExternalNode("h1", occupied={"vcore": 501}, attributes={"state": "repair"}, schedulable=False)]
    handler.update_node(ExternalNode("h1"), ExternalNode("h2"))
    assert told[1] == ExternalNode("h2", occupied={"vcore": 500})
    for config in (b"spare = [", b"[spare]\nvcore = -1", b"[spare]\nvcore = 'x'"):
        with pytest.raises(HandlerSettingsWrong, match="config_path: "):
            module.make_handler(cache, config, context)
