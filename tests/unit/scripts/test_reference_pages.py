"""The pages of the site that come from the code have all of it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor
from muster_bus.topics import Topics
from muster_cli.main import app
from muster_cli.settings import load
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2
from muster_proto.muster.v1 import admin_pb2, audit_pb2, callbacks_pb2, events_pb2, metrics_pb2
from muster_proto.si.v1 import si_pb2

ROOT = Path(__file__).parents[3]
PAGES = runpy.run_path(str(ROOT / "scripts/reference_pages.py"))["pages"]()


def rows(name: str) -> set[str]:
    return set(re.findall(r"^\| (?:`|\*\*)([^`*]+)(?:`|\*\*) \|", PAGES[f"reference/{name}.md"], re.MULTILINE))


def test_every_setting_has_a_row_with_its_meaning() -> None:
    settings = {each.name for each in load(None, (), environment={}).effective()}
    assert settings
    assert settings <= rows("settings")
    without = re.findall(r"^\| `[a-z_.]+` \|[^|]*\|\s*\|$", PAGES["reference/settings.md"], re.MULTILINE)
    assert without == []


def test_every_command_has_a_heading() -> None:
    commands = [name for name in app if not name.startswith("-")]
    assert len(commands) > 20
    for name in commands:
        assert re.search(rf"^## muster {name}$", PAGES["reference/commands.md"], re.MULTILINE), name


def test_every_topic_has_a_row() -> None:
    assert {spec.name for spec in Topics(derived=True).specs()} == rows("topics")


@pytest.mark.parametrize(
    "stubs",
    [admin_pb2, audit_pb2, callbacks_pb2, envelope_pb2, events_pb2, metrics_pb2, si_pb2, state_pb2],
    ids=lambda stubs: str(stubs.DESCRIPTOR.name),
)
def test_every_message_and_call_of_a_file_has_a_row(stubs: object) -> None:
    file: FileDescriptor = stubs.DESCRIPTOR  # type: ignore[attr-defined]
    expected = {*file.message_types_by_name, *file.enum_types_by_name, *file.services_by_name}
    expected |= {method.name for service in file.services_by_name.values() for method in service.methods}
    assert f"\n## {file.name.removeprefix('muster_proto/')}\n" in PAGES["reference/protos.md"]
    assert expected <= rows("protos")


def test_the_navigation_has_every_page() -> None:
    """(The strict build knows pages of docs/ that are not in it; made ones it would not miss.)"""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in PAGES:
        assert f": {name}\n" in navigation
