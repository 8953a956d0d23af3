"""docs/external.md and docs/metrics.md have all fields and metrics, and their code works."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import tomllib
from types import ModuleType
from typing import get_args

import documents
import httpx
import pytest
from manual_clock import ManualClock
from muster_core.external.errors import HandlerSettingsWrong, InformerSettingsWrong, NotTaken
from muster_core.external.model import (
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalQueue,
)
from muster_informers import plugin
from muster_informers.contract import (
    EVENT_HANDLERS_GROUP,
    INFORMERS_GROUP,
    EventHandler,
    HandlerContext,
    InformerContext,
)
from muster_informers.documents import fields_table, read_document
from muster_informers.informer import SharedIndexInformer
from muster_informers.metrics import Metric
from prometheus_client import REGISTRY
from unit.external.faking import ManualTime, Recorder, settled

PARTS = ("external", "external-settings", "external-documents", "external-plugins", "external-native")
TEXT = documents.page(*(f"{part}.md" for part in PARTS))
METRICS = documents.page("metrics.md")


def section(title: str) -> str:
    found = re.search(rf"^#{{1,3}} {title}\n(.*?)(?=^###? |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def module_of(title: str) -> ModuleType:
    """Run the Python code of a section, and return it as a module."""
    (code,) = re.findall(r"```python\n(.*?)```", section(title), re.DOTALL)
    module = ModuleType("documented")
    exec(compile(code, "docs/external.md", "exec"), module.__dict__)
    return module


def test_every_field_is_in_the_table() -> None:
    assert f"fields_table -->\n{fields_table()}\n<!-- end" in TEXT


def test_the_documents_can_be_read() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", section("Documents of external objects"), re.DOTALL)
    said = read_document(json.loads(text))
    assert said.what == ExternalNode("host-1", {"vcore": 32_000, "memory": 128 << 30})


def test_every_metric_is_explained_in_its_order() -> None:
    rows = re.findall(r"^\| `(muster_external_\w+)` \| (.+) \|$", METRICS, re.MULTILINE)
    exposed = {metric.name for metric in REGISTRY.collect()}
    assert exposed >= set(Metric)
    counters = {metric.name for metric in REGISTRY.collect() if metric.type == "counter"}
    assert [name for name, _ in rows] == [f"{each}_total" if each in counters else each for each in Metric]


def test_the_entry_points_are_those_of_the_registry() -> None:
    (text,) = re.findall(
        r"```toml\n(# pyproject.toml\n.*?)```", section("Writing a plugin for external resources"), re.DOTALL
    )
    points = tomllib.loads(text)["project"]["entry-points"]
    for title, group in (("Writing an informer", INFORMERS_GROUP), ("Writing an event handler", EVENT_HANDLERS_GROUP)):
        ((name, value),) = points[group].items()
        module, _, factory = value.partition(":")
        assert name == "acme"
        assert f"# {module.replace('.', '/')}.py" in section(title)
        assert f"def {factory}(" in section(title)


def test_every_name_of_the_public_module_is_explained() -> None:
    text = section("Writing a plugin for external resources") + section("Objects") + section("Writing an informer")
    text += section("Writing an event handler")
    assert [name for name in plugin.__all__ if not re.search(rf"`{name}[`(]", text)] == []


def test_the_plugin_of_the_page_imports_from_the_public_module_only() -> None:
    code = "".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    assert set(re.findall(r"^(?:from|import) (muster[\w.]*)", code, re.MULTILINE)) == {"muster_informers.plugin"}


def test_the_table_of_objects_is_that_of_the_classes() -> None:
    table = re.search(r"<!-- objects: .*?-->\n(.*?)<!-- end of objects -->", TEXT, re.DOTALL)
    assert table is not None
    rows = re.findall(r"^\| `(External\w+)` \| `(\w+)` \| `(\w+)` \| (.*) \|$", table[1], re.MULTILINE)
    classes = {name: getattr(plugin, name) for name, *_ in rows}
    assert set(classes.values()) == set(get_args(ExternalObject))
    for name, kind, id_field, others in rows:
        first, *rest = dataclasses.fields(classes[name])
        assert first.name == id_field
        assert name == f"External{ExternalKind[kind].capitalize()}"
        assert [field.name for field in rest] == re.findall(r"`(\w+)`", others)
        defaults = dict(re.findall(r"`(\w+)` = (\{\}|\(\)|\"\"|\w+)", others))
        for field in rest:
            factory = field.default_factory
            known = field.default if factory is dataclasses.MISSING else factory()
            assert defaults.get(field.name, dataclasses.MISSING) == (
                known if known is dataclasses.MISSING else json.dumps(known) if known == "" else str(known)
            )


@pytest.mark.parametrize(
    ("title", "described"),
    [
        ("Writing an informer", InformerContext),
        ("Writing an event handler", HandlerContext),
    ],
)
def test_every_field_of_a_context_is_explained(title: str, described: type) -> None:
    (row,) = [line for line in section(title).splitlines() if line.startswith(f"| `context` | `{described.__name__}`")]
    assert [field.name for field in dataclasses.fields(described)] == [
        name for name in re.findall(r"`(\w+)`", row) if name in {field.name for field in dataclasses.fields(described)}
    ]


@pytest.mark.parametrize(
    ("title", "protocol"),
    [
        ("Writing an informer", plugin.ListWatch),
        ("Writing an informer", plugin.OfferTaker),
        ("Writing an event handler", plugin.ExternalCache),
    ],
)
def test_every_method_of_a_protocol_is_explained(title: str, protocol: type) -> None:
    names = [name for name in vars(protocol) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"`(async )?{name}[`(]", section(title))] == []


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
    context, native_context = (HandlerContext(kind, ManualClock()) for kind in ("acme", plugin.NATIVE))
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
    tenant = ExternalApplication("app", "root.a", "mallory", tags={"acme/quota": "3"})
    config = b"banned = ['mallory']"
    module.make_handler(cache, config, context).add_application(tenant, initial=False)
    assert told[2:] == [tenant, ExternalQueue("root.a", {"vcore": 3})]
    with pytest.raises(NotTaken, match="user mallory may run nothing here"):
        module.make_handler(cache, config, native_context).add_application(tenant, initial=False)
    for config in (b"spare = [", b"[spare]\nvcore = -1", b"[spare]\nvcore = 'x'"):
        with pytest.raises(HandlerSettingsWrong, match="config_path: "):
            module.make_handler(cache, config, context)
