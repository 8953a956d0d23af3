"""Rules for the text of compose.secure.yaml that a run of it would not check."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from muster_cli import bootstrap
from muster_cli.settings import STANDALONE_DEFAULTS, load
from ruamel.yaml import YAML

COMPOSE = Path(__file__).parents[3] / "deploy/compose"
TEXT = (COMPOSE / "compose.secure.yaml").read_text()
STACK = YAML(typ="safe").load(TEXT)
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
OURS = ("scheduler", "gateway", "view", "event-publisher", "derive")
# PostgreSQL's image starts as root, because it must give its volume to the user postgres.
CAPABILITIES = {"postgres": {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}}


@pytest.mark.parametrize("name", SERVICES)
def test_each_container_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert set(service.get("cap_add", ())) == CAPABILITIES.get(name, set())
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert not {"privileged", "network_mode", "pid", "ipc", "devices"} & service.keys()
    # Mounts of this folder are read-only; all others are named volumes.
    for volume in service.get("volumes", ()):
        assert volume.endswith(":ro") if volume.startswith("./") else volume.split(":")[0] in STACK["volumes"]
        if volume.startswith("./"):
            assert (COMPOSE / volume.split(":")[0]).exists(), volume


def test_images_are_in_one_file() -> None:
    lines = (COMPOSE / "images.env").read_text().splitlines()
    images = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert all(re.fullmatch(r"[a-z/]+:[\w.-]+(@sha256:[0-9a-f]{64})?", image) for image in images.values()), images
    wanted = set(re.findall(r"\$\{(\w+_IMAGE):\?", TEXT))
    assert wanted == images.keys()
    for name, service in SERVICES.items():
        assert service["image"].startswith("${MUSTER_IMAGE:-" if name in OURS else "${"), name
    # The other stack uses the same images.
    usual = (COMPOSE / "compose.yaml").read_text()
    for image in images.values():
        assert image.partition("@")[0] in usual or image == images["PYTHON_IMAGE"], image


def test_no_password_is_written_down() -> None:
    assert "trial" not in TEXT
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|SECRET", key) and not key.endswith("TOKENS"):
                assert str(value).startswith("/run/secrets/"), key
    defaults = re.findall(r"\$\{(\w+):-", TEXT)
    assert not [name for name in defaults if re.search("PASSWORD|TOKEN", name)]


@pytest.mark.parametrize("name", SERVICES)
def test_each_container_has_the_secrets_that_it_names_and_no_others(name: str) -> None:
    service = SERVICES[name]
    mounted = [COMPOSE / each.split(":")[0] for each in service.get("volumes", ()) if each.startswith("./")]
    texts = [json.dumps(service), *(path.read_text() for path in mounted if path.is_file())]
    named = set(re.findall(r"/run/secrets/(\w+)", "".join(texts)))
    assert named == set(service.get("secrets", ()))
    assert named <= STACK["secrets"].keys()


def test_networks_are_apart() -> None:
    members: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for network in service["networks"]:
            members.setdefault(network, set()).add(name)
    assert members.keys() == STACK["networks"].keys()
    assert members == {
        "front": {"gateway"},
        "front-grafana": {"grafana"},
        "services": {*OURS, "prometheus"},
        "log": {*OURS, "kafka"},
        "sessions": {"gateway", "redis"},
        "history": {"event-publisher", "postgres"},
        "monitoring": {"prometheus", "grafana"},
    }
    open_ones = {name for name, network in STACK["networks"].items() if not (network or {}).get("internal")}
    assert open_ones == {"front", "front-grafana"}
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"gateway", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


@pytest.mark.parametrize("name", OURS)
def test_the_settings_of_each_service_are_taken(name: Any) -> None:
    environment = {
        key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))
        for key, value in SERVICES[name]["environment"].items()
        if key.startswith("MUSTER_")
    }
    settings = load(None, (), (), STANDALONE_DEFAULTS, environment).values
    assert settings.log.kafka_security_protocol == "SASL_SSL"
    assert settings.log.kafka_password()
    if name != "gateway":
        bootstrap._check_listeners(settings, name)
        return
    assert settings.gateway.http_open is False
    assert {name: token.role for name, token in settings.gateway.tokens.items()} == {
        "admin": "admin",
        "read": "read",
    }
    assert settings.gateway.sessions_url.get_secret_value().startswith("rediss://")


def test_prometheus_asks_the_same_as_in_the_other_stack() -> None:
    yaml = YAML(typ="safe")
    secure = yaml.load((COMPOSE / "prometheus/prometheus.secure.yml").read_text())
    for job in secure["scrape_configs"]:
        job.pop("authorization", None)
    assert secure == yaml.load((COMPOSE / "prometheus/prometheus.yml").read_text())


def test_grafana_lets_nobody_in_without_a_password() -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"
