"""docs/events-grpc.md explains every field of muster.v1.Events and every setting, and its program compiles."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import documents
import pytest
from muster_cli.main import app
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.settings import GatewaySettings
from muster_proto.muster.v1 import callbacks_pb2, events_pb2

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/events-grpc.md").read_text(encoding="utf-8")
CALLBACKS = documents.page("callbacks.md", "callbacks-events.md")


@pytest.mark.parametrize("message", list(events_pb2.DESCRIPTOR.message_types_by_name.values()), ids=lambda m: m.name)
def test_every_field_is_explained(message: object) -> None:
    for field in message.fields:  # type: ignore[attr-defined]
        name = r"from\.\w+" if field.name == "from" else rf"(from\.)?{field.name}"
        assert re.search(f"`{name}`", TEXT), field.name


@pytest.mark.parametrize("name", ["events", "events_after", "request_events_only", "request_events_after"])
def test_the_event_settings_of_an_rm_are_documented(name: str) -> None:
    assert name in callbacks_pb2.Hello.DESCRIPTOR.fields_by_name
    assert re.search(rf"`(hello\.)?{name}`", CALLBACKS)


@pytest.mark.parametrize(
    ("setting", "shown"),
    re.findall(r"`((?:publisher|gateway)\.\w+)` \(([\d,]+)", TEXT)
    + re.findall(r"`(gateway\.request_\w+)` \((\d+) s", CALLBACKS),
)
def test_settings_and_their_defaults_are_those_in_force(setting: str, shown: str) -> None:
    section, name = setting.split(".")
    default = {"publisher": PublisherSettings(), "gateway": GatewaySettings()}[section]
    assert getattr(default, name) == float(shown.replace(",", ""))


def test_flags_that_are_shown_exist() -> None:
    for line in re.findall(r"^\$ (muster events .*)$", TEXT, re.MULTILINE):
        app.parse_args(line.split()[1:], exit_on_error=False, print_error=False)


def test_the_program_is_one() -> None:
    for program in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        ast.parse(program)
