"""Stores by entry points: Muster's own, another package's, and errors."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from muster_bus.clock import SystemClock
from muster_cli.settings import load
from muster_cli.settings_loader import SettingsError
from muster_event_publisher.errors import InvalidSinkSettings
from muster_event_publisher.history.files import FileSink
from muster_event_publisher.history.registry import SinkPlan, readers_of, sinks_of
from muster_event_publisher.history.sink import FlushPolicy
from muster_event_publisher.settings import PublisherSettings
from pydantic import SecretStr
from unit.publisher.feeding import event
from unit.publisher.running import TOPICS, running

ACME = """
from unit.publisher.memory_sink import MemorySink, MemoryTarget
from muster_event_publisher.history.sink import FlushPolicy

target = MemoryTarget()
given = []

class AcmeSink(MemorySink):
    def __init__(self, name):
        super().__init__(target)
        self.name = name

def make(options, context):
    if "depth" not in options:
        raise ValueError("depth is missing, expected a number")
    given.append((dict(options), context))
    return AcmeSink(context.name), FlushPolicy(records=1, size_bytes=1, wait_s=0.01)
"""


def install(folder: Path, package: str, module: str, code: str, *points: str) -> None:
    """Install a package as pip does, on the path of this process."""
    folder.mkdir()
    (folder / f"{module}.py").write_text(code)
    information = folder / f"{package}-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text("\n".join(["[muster.event_sinks]", *points, ""]))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    install(tmp_path / "acme", "acme_store", "acme_store_for_muster", ACME, "acme = acme_store_for_muster:make")
    yield importlib.import_module("acme_store_for_muster")
    del sys.modules["acme_store_for_muster"]


def plans(**settings: object) -> list[SinkPlan]:
    return sinks_of(PublisherSettings.model_validate(settings), TOPICS, SystemClock())


def refused(**settings: object) -> str:
    with pytest.raises(InvalidSinkSettings) as raised:
        plans(**settings)
    return str(raised.value)


async def test_another_packages_store_gets_every_event(acme: ModuleType) -> None:
    made = plans(sinks={"deep": {"kind": "acme", "depth": 3, "key": "abc"}})
    async with running(sinks=made) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(50))
    assert {n: value for (_, _, n), value in acme.target.events.items()} == {n: event(n) for n in range(50)}
    options, context = acme.given[0]
    assert options == {"depth": 3, "key": "abc"}
    assert (context.name, context.source, context.partitions) == ("deep", TOPICS.events, TOPICS.partitions)


def test_the_shipped_stores_by_table_and_by_flat_settings(tmp_path: Path) -> None:
    made = plans(
        parquet_dir=tmp_path,
        parquet_roll_records=5,
        postgres_dsn="postgresql://u:p@h/d",
        sinks={
            "jsonl": {"location": str(tmp_path / "lines"), "compress": False, "roll_s": 2},
            "bucket": {"kind": "parquet", "location": "s3://b/p?endpoint=http://127.0.0.1:1", "roll_records": 7},
        },
    )
    assert [(sink.name, policy.records, policy.wait_s) for sink, policy in made] == [
        ("parquet", 5, 60.0), ("postgres", 10_000, 1.0), ("jsonl", 100_000, 2.0), ("bucket", 7, 60.0),
    ]  # fmt: skip
    assert isinstance(made[0][0], FileSink)
    assert made[3][1] == FlushPolicy(7, 64 << 20, 60.0)


def test_readers_are_those_of_the_stores_that_have_one(tmp_path: Path) -> None:
    settings = PublisherSettings(
        parquet_dir=tmp_path, postgres_dsn=SecretStr("postgresql://h/d"), sinks={"jsonl": {"location": SecretStr("x")}}
    )
    assert [reader.name for reader in readers_of(settings, TOPICS, SystemClock())] == ["parquet", "postgres"]
    assert readers_of(PublisherSettings(), TOPICS, SystemClock()) == []


def test_an_unknown_kind_lists_what_is_known() -> None:
    said = refused(sinks={"parket": {}})
    assert "publisher.sinks.parket" in said
    assert "known are jsonl, parquet, postgres" in said


def test_two_packages_with_one_kind_are_both_named(acme: ModuleType, tmp_path: Path) -> None:
    install(tmp_path / "other", "other_store", "other_store_for_muster", ACME, "acme = other_store_for_muster:make")
    said = refused(sinks={"acme": {"depth": 1}})
    assert "acme_store 1.2 (acme_store_for_muster:make)" in said
    assert "other_store 1.2 (other_store_for_muster:make)" in said


def test_a_package_that_cannot_be_loaded_is_named(acme: ModuleType, tmp_path: Path) -> None:
    install(tmp_path / "broken", "broken_store", "broken_store_for_muster", "import nowhere_to_be_found",
            "broken = broken_store_for_muster:make")  # fmt: skip
    assert "broken_store 1.2" in refused(sinks={"broken": {}})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sinks": {"acme": {}}}, ["publisher.sinks.acme", "depth is missing"]),
        ({"sinks": {"parquet": {}}}, ["publisher.sinks.parquet.location", "required"]),
        ({"sinks": {"jsonl": {"location": "/x", "rol_s": 3}}}, ["publisher.sinks.jsonl.rol_s", "roll_s"]),
        ({"sinks": {"jsonl": {"location": "/x", "roll_s": -1}}}, ["publisher.sinks.jsonl.roll_s", "greater than 0"]),
        ({"sinks": {"parquet": {"location": "/x"}}, "parquet_dir": "/y"}, ["publisher.parquet_dir", "both name"]),
        ({"sinks": {"postgres": {"dsn": "d", "schema": "A;"}}}, ["publisher.sinks.postgres.schema", "'A;'"]),
        ({"sinks": {"jsonl": {"location": "ftp://a/b"}}}, ["publisher.sinks.jsonl", "s3://bucket/prefix"]),
        ({"sinks": {"jsonl": {"location": "s3://b/p?endpoint=there"}}}, ["endpoint 'there'", "http://host:port"]),
        ({"sinks": {"jsonl": {"location": "s3://b/p?secret=x"}}}, ["unknown option 'secret'", "endpoint"]),
        ({"sinks": {"jsonl": {"location": "s3://b/p", "access_key_id": "k"}}}, ["secret_access_key", "both or none"]),
        ({"sinks": {"jsonl": {"location": "/x", "kind": 3}}}, ["publisher.sinks.jsonl.kind", "text"]),
    ],
)
def test_options_that_cannot_be_used(acme: ModuleType, settings: dict[str, object], expected: list[str]) -> None:
    said = refused(**settings)
    assert [part for part in expected if part not in said] == []


SECRET = "s3cret-of-mine"


@pytest.mark.parametrize(
    "sinks",
    [
        {"postgres": {"dsn": f"postgresql://u:{SECRET}@h/d", "schema": "A;"}},
        {"postgres": {"dsn": "d", "pasword": SECRET}},
        {"parquet": {"location": f"s3://key:{SECRET}@bucket/p"}},
        {"parquet": {"location": f"s3://key:{SECRET}\u2100@bucket/p"}},
        {"parquet": {"location": f"s3://key:with/{SECRET}@bucket/p"}},
        {"parquet": {"location": f"s3://bucket/p?endpoint=ftp://key:{SECRET}@host:1"}},
        {"parquet": {"location": f"s3://bucket/p?endpoint=http://key:{SECRET}%40host:1"}},
        {"parquet": {"location": "s3://bucket/p?nonsense=1", "access_key_id": "a", "secret_access_key": SECRET}},
    ],
)
def test_no_secret_in_an_error_or_in_the_settings_shown(sinks: dict[str, object]) -> None:
    with pytest.raises(InvalidSinkSettings) as raised:
        plans(sinks=sinks)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert SECRET not in repr(PublisherSettings.model_validate({"sinks": sinks}))


def test_tables_in_a_file_and_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "muster.toml"
    file.write_text(
        '[publisher.sinks.archive]\nkind = "parquet"\nlocation = "/data"\nroll_s = 2.5\n'
        'secret_access_key = "tell-nobody"\n'
    )
    composed = load(file, [], environment={})
    archive = composed.values.publisher.sinks["archive"]
    assert archive["roll_s"] == 2.5
    shown = {setting.name: setting.shown for setting in composed.effective()}["publisher.sinks"]
    assert "roll_s: 2.5" in shown
    assert "tell-nobody" not in shown
    text = '{"jsonl": {"location": "/lines", "compress": false}}'
    composed = load(None, [], environment={"MUSTER_PUBLISHER__SINKS": text})
    assert composed.values.publisher.sinks["jsonl"]["compress"] is False
    with pytest.raises(SettingsError, match=r"publisher\.sinks") as raised:
        load(None, [f"publisher.sinks={SECRET}"], environment={})
    assert raised.value.problems
