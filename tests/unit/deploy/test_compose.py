"""Rules for the text of the compose stack that no run of it would check."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML

SERVICES = YAML(typ="safe").load((Path(__file__).parents[3] / "deploy/compose/compose.yaml").read_text())["services"]


def test_deciding_services_have_priority() -> None:
    lower = {name for name, service in SERVICES.items() if service.get("cpu_shares", 1024) < 1024}
    assert lower == {"view", "event-publisher", "derive"}
