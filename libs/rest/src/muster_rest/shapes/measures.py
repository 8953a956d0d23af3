"""Health checks, samples of the history, and the use of nodes."""

from __future__ import annotations

from msgspec import Struct

from muster_rest.shapes.base import YuniKornShape


class HealthCheckDao(Struct, omit_defaults=True, kw_only=True, rename="pascal"):
    """One health check (capitals are YuniKorn's)."""

    name: str = ""
    succeeded: bool
    description: str = ""
    diagnosis_message: str = ""


class HealthDao(Struct, omit_defaults=True, kw_only=True, rename="pascal"):
    """All health checks."""

    healthy: bool
    health_checks: list[HealthCheckDao] = []


class ApplicationsSampleDao(YuniKornShape, kw_only=True):
    """The number of running applications. It is text, as in YuniKorn, and readers expect that."""

    timestamp: int = 0
    total_applications: str = ""


class ContainersSampleDao(YuniKornShape, kw_only=True):
    """The number of allocations at one time."""

    timestamp: int = 0
    total_containers: str = ""


class BucketDao(YuniKornShape, kw_only=True):
    """The nodes in one tenth, by id."""

    bucket_name: str = ""
    num_of_nodes: int = 0
    node_names: list[str] = []


class TypeDao(YuniKornShape, kw_only=True):
    """One resource type: always ten buckets, emptiest nodes first."""

    type: str = ""
    utilization: list[BucketDao] = []


class UtilizationDao(YuniKornShape, kw_only=True):
    """One partition; types by name. Without nodes the list is empty, because the web UI reads it without a check."""

    cluster_id: str
    partition: str
    utilizations: list[TypeDao]


class ProcessHealthDao(Struct, omit_defaults=True, kw_only=True):
    """Whether a process works, and its faults, one sentence each. ``behind`` are those that only delay its work."""

    healthy: bool
    problems: list[str]
    behind: list[str] = []
