"""docs/metrics.md explains exactly the fields of muster.v1.Metrics, the metrics of the tally and the flags."""

from __future__ import annotations

import inspect
import re

import documents
import muster_bus.metrics
import muster_event_publisher.metrics
import muster_gateway.metrics
import muster_informers.metrics
import muster_view.metrics.metrics
import pytest
from muster_cli import main
from muster_client import metrics_client
from muster_gateway import metrics_codec
from muster_proto.muster.v1 import metrics_pb2 as pb
from muster_scheduler import metrics as scheduler_metrics
from muster_scheduler.metrics import Metric
from muster_view.metrics import yunikorn_metrics
from muster_view.rest import snapshot
from prometheus_client.metrics import MetricWrapperBase

TEXT = documents.page("metrics.md")
MESSAGES = (
    pb.MetricsRequest,
    pb.WatchMetricsRequest,
    pb.MetricsSnapshot,
    pb.SchedulerMetrics,
    pb.Tally,
    pb.QueueMetrics,
    pb.NodeMetrics,
    pb.RuntimeMetrics,
    pb.ProcessMetrics,
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.DESCRIPTOR.name)
def test_every_field_is_explained_in_its_order(message: type[pb.MetricsRequest]) -> None:
    rows = documents.table(TEXT, f"`{message.DESCRIPTOR.name}`")
    assert [row[0] for row in rows] == [f"`{field.name}`" for field in message.DESCRIPTOR.fields]
    assert all(row[1] for row in rows if row[0] != "`node_id`")


def test_every_metric_of_the_tally_is_named() -> None:
    rows = documents.table(TEXT, "### Scheduler metrics")
    assert [row[0] for row in rows] == [f"`{metric}_total`" for metric in Metric]
    assert f"| `{scheduler_metrics.PARTITIONS}` | gauge |" in TEXT
    counted = {re.match("`([a-z_]+)`", row[1])[1] for row in rows}  # type: ignore[index]
    assert counted == {field.name for field in pb.Tally.DESCRIPTOR.fields} - {"events"}


def test_every_metric_of_quotas_is_named() -> None:
    rows = documents.table(TEXT, "### Quotas of resource managers")
    found = (scheduler_metrics.quota_refused, scheduler_metrics.rms_refused, scheduler_metrics.quotas_reached)
    assert {str(each) for each in scheduler_metrics.QuotaMetric} == {each._name for each in found}
    assert [row[:3] for row in rows] == [_row(each) for each in found]


def _row(each: MetricWrapperBase) -> list[str]:
    name = f"`{each._name}_total`" if each._type == "counter" else f"`{each._name}`"
    return [name, each._type, ", ".join(f"`{label}`" for label in each._labelnames)]


OWN = {
    "### The log": muster_bus.metrics,
    "### The gateway": muster_gateway.metrics,
    "### The view": muster_view.metrics.metrics,
    "### The event publisher": muster_event_publisher.metrics,
    "### External sources": muster_informers.metrics,
}


@pytest.mark.parametrize("heading", OWN, ids=lambda heading: heading[4:])
def test_every_metric_of_a_service_is_in_its_table(heading: str) -> None:
    exposed = [each for each in vars(OWN[heading]).values() if isinstance(each, MetricWrapperBase)]
    rows = documents.table(TEXT, heading)
    assert [row[:3] for row in rows] == [_row(each) for each in exposed]


def test_every_metric_of_the_core_is_in_the_table() -> None:
    rows = documents.table(TEXT, "### YuniKorn's metrics")
    said = {row[0].strip("`").replace("<resource>", "{}").replace("<queue>", "{}"): row for row in rows}
    assert list(said) == [family.name for family in yunikorn_metrics.FAMILIES]
    for family in yunikorn_metrics.FAMILIES:
        _, kind, labels, *_ = said[family.name]
        assert kind == family.type
        assert tuple(re.findall(r"(?:^|, )`(\w+)`", labels)) == family.labels


def test_every_flag_and_its_default() -> None:
    rows = documents.table(TEXT, "| flag |")
    flags = {row[0].strip("`"): row[1] for row in rows}
    parameters = inspect.signature(main.top).parameters
    assert list(flags) == [f"--{name}" for name in parameters if name != "flags"]  # those are in security.md
    told = {name: str(parameters[name].default) for name in ("gateway", "nodes", "interval")}
    assert {name: flags[f"--{name}"] for name in told} == told


def test_bounds_and_sections_are_those_of_the_view() -> None:
    assert snapshot.NODES_MAX == metrics_codec.NODES_MAX
    assert [section.value for section in metrics_client.Section] == [section.upper() for section in snapshot.Section]
