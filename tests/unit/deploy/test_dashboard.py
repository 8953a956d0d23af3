"""The dashboard's file is up to date with its code, and some process exposes every metric of its queries."""

from __future__ import annotations

import importlib
import re
import runpy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from muster_view.metrics.yunikorn_metrics import FAMILIES
from prometheus_client import REGISTRY
from ruamel.yaml import YAML

COMPOSE = Path(__file__).parents[3] / "deploy" / "compose"
# Each module adds its metrics to the registry.
for _name in (
    "muster_bus.metrics",
    "muster_event_publisher.metrics",
    "muster_gateway.response_delivery",
    "muster_informers.metrics",
    "muster_scheduler.metrics",
    "muster_view.metrics.metrics",
):
    importlib.import_module(_name)
CODE = runpy.run_path(str(COMPOSE / "grafana" / "dashboard.py"))
DASHBOARD: dict[str, Any] = CODE["dashboard"]()
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Words of PromQL that are no metrics.
_WORDS = {"sum", "max", "by", "rate", "histogram_quantile", "label_replace", "or", "vector"}
_STRINGS, _LABELS, _BY = re.compile(r'"[^"]*"'), re.compile(r"\{[^}]*\}|\[[^\]]*\]"), re.compile(r"\bby \([^)]*\)")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def named(expression: str) -> set[str]:
    """The metrics that a query names, without those of a pattern."""
    bare = _LABELS.sub("", _STRINGS.sub('""', _BY.sub("", expression)))
    return set(_NAME.findall(bare)) - _WORDS


def exposed() -> set[str]:
    """The names of all series of a process that runs everything."""
    found = set()
    kinds = {each.name: each.type for each in FAMILIES}
    for family in REGISTRY.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        kinds[name] = family.type
    for name, kind in kinds.items():
        found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return found | {"yunikorn_scheduler_vcore_node_usage_total"}


def test_the_file_is_the_code_s() -> None:
    written = (COMPOSE / "grafana" / "dashboards" / "muster.json").read_text(encoding="utf-8")
    assert written == CODE["text"](), "python deploy/compose/grafana/dashboard.py writes it"


def test_names_are_found_in_queries() -> None:
    query = (
        'sum by (le, a) (rate(one_bucket{x="two"}[$__rate_interval])) / (label_replace({__name__=~"b"}, "c", "d") > 0)'
    )
    assert named(query) == {"one_bucket"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_metric_that_a_panel_names_exists(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        names = named(target["expr"])
        assert names <= exposed(), target["expr"]
        assert names or "__name__" in target["expr"]
        for variable in set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval", "1"}:
            assert variable in {each["name"] for each in DASHBOARD["templating"]["list"]}


def test_panels_have_room_a_number_and_a_source() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    (source,) = YAML(typ="safe").load((COMPOSE / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    used = {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]}
    assert used == {source["uid"]}


def test_the_stack_has_what_is_asked_and_shown() -> None:
    stack = YAML(typ="safe").load((COMPOSE / "compose.yaml").read_text())["services"]
    config = YAML(typ="safe").load((COMPOSE / "prometheus" / "prometheus.yml").read_text())
    targets = {
        f"{found[0]['names'][0]}:{found[0]['port']}"
        if (found := job.get("dns_sd_configs"))
        else job["static_configs"][0]["targets"][0]
        for job in config["scrape_configs"]
    }
    ports = {
        name: value.rpartition(":")[2]
        for name, service in stack.items()
        for key, value in service.get("environment", {}).items()
        if key.endswith("__HTTP_ADDRESS")
    }
    assert targets == {f"{name}:{port}" for name, port in ports.items()}
    (view,) = (job for job in config["scrape_configs"] if job["job_name"] == "view")
    assert view["metrics_path"] == "/ws/v1/metrics"
    mounts = {each.split(":")[1] for each in stack["grafana"]["volumes"]}
    (provider,) = YAML(typ="safe").load((COMPOSE / "grafana/provisioning/dashboards/muster.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] in mounts
    for service in ("prometheus", "grafana"):
        for each in stack[service]["volumes"]:
            if each.startswith("./"):
                assert (COMPOSE / each.split(":")[0]).exists(), each
