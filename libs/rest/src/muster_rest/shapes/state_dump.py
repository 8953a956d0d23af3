"""The whole state of a resource manager: ``/debug/fullstatedump``."""

from __future__ import annotations

from muster_rest.shapes.base import YuniKornShape, joined, many
from muster_rest.shapes.configuration import ConfigDao, RuleDao
from muster_rest.shapes.events import EventStreamDao
from muster_rest.shapes.measures import ApplicationsSampleDao, ContainersSampleDao
from muster_rest.shapes.state import ApplicationDao, ClusterDao, NodeDao, PartitionDao, QueueDao


class PartitionNodesHeadDao(YuniKornShape, kw_only=True):
    """A partition: the fields before its nodes."""

    partition_name: str


class PartitionRulesDao(YuniKornShape, kw_only=True):
    """The placement rules of a partition."""

    partition: str
    rules: list[RuleDao]


class StateDumpHeadDao(YuniKornShape, kw_only=True):
    """The dump without applications, nodes and queues."""

    timestamp: int
    partitions: list[PartitionDao] = []
    app_history: list[ApplicationsSampleDao] = []
    cluster_info: list[ClusterDao] = []
    container_history: list[ContainersSampleDao] = []
    rm_diagnostics: dict[str, str]
    log_level: str
    config: ConfigDao
    placement_rules: list[PartitionRulesDao] = []
    event_streams: list[EventStreamDao] = []


PartitionNodesDao = joined(
    "PartitionNodesDao", "The nodes of a partition.", PartitionNodesHeadDao, {"nodesInfo": many(NodeDao)}
)
StateDumpDao = joined(
    "StateDumpDao",
    "The whole state of a resource manager.",
    StateDumpHeadDao,
    {"applications": many(ApplicationDao), "nodes": many(PartitionNodesDao), "queues": many(QueueDao)},
)
