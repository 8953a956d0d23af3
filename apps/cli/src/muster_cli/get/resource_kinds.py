"""What can be listed: where each kind comes from, and its columns.

An item is a JSON object of REST. A column's value is a text, a number, or None; a table shows it as people read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster_core.model.quotas import QuotaKind
from muster_si.constants import CPU, MEMORY

from muster_cli.get.rest_client import RestClient, quoted
from muster_cli.top_screen import amount, duration

Item = dict[str, Any]
Value = str | int | float | None
# The used amounts of an item by resource type, and the limits (empty: there are none).
Amounts = Callable[[Item], tuple[Mapping[str, int], Mapping[str, int]]]

_NS = 1_000_000_000
# Priorities are 32 bits wide; REST shows the smallest one where there is none.
_NO_PRIORITY = -(1 << 31)
# These are shown although they are not asked for; others only with `-o wide`.
_USUAL_TYPES = (CPU, MEMORY)


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    :ivar of: the value of an item.
    :ivar show: the value as people read it; None: as it is.
    :ivar wide: only with ``-o wide``.
    :ivar rare: only if an item has a value.
    """

    name: str
    of: Callable[[Item], Value]
    show: Callable[[Any], str] | None = None
    wide: bool = False
    rare: bool = False

    def cell(self, item: Item) -> str:
        """Returns an item's text."""
        return self.format(self.of(item))

    def format(self, value: Value) -> str:
        """Returns a value's text."""
        if value is None or value == "":
            return "-"
        return self.show(value) if self.show is not None else f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """One kind of items.

    :ivar read: asks REST for the items of a partition.
    :ivar key: names an item; unique among the items of a reading.
    :ivar amounts: each resource type is a column.
    """

    name: str
    read: Callable[[RestClient, str, str], list[Item]]
    key: Callable[[Item], str]
    columns: tuple[Column, ...]
    amounts: Amounts | None = None

    def all_columns(self, items: list[Item], now_ns: int) -> list[Column]:
        """Returns the columns, those of the items' resource types included.

        :param now_ns: ages end there.
        """
        present = [column for column in self.columns if not column.rare or any(column.of(item) for item in items)]
        columns = [_aged(column, now_ns) for column in present]
        if self.amounts is None:
            return columns
        amounts = [self.amounts(item) for item in items]
        types = sorted({name for used, limits in amounts for name in (*used, *limits)}, key=_order)
        return columns + [_amount_column(self.amounts, name) for name in types]


def _order(resource_type: str) -> tuple[bool, str]:
    return resource_type not in _USUAL_TYPES, "" if resource_type == CPU else resource_type


@dataclass(frozen=True, slots=True)
class AmountColumn(Column):
    """The amount of one resource type."""

    amounts: Amounts = field(kw_only=True)
    resource_type: str = field(kw_only=True)

    def cell(self, item: Item) -> str:
        """Returns the used amount, and behind a slash the limit."""
        limit = self.amounts(item)[1].get(self.resource_type)
        shown = self.format(self.of(item))
        return shown if limit is None else f"{shown}/{amount(self.resource_type, limit)}"


def _amount_column(amounts: Amounts, resource_type: str) -> AmountColumn:
    is_usual = resource_type in _USUAL_TYPES or "gpu" in resource_type

    def of(item: Item) -> Value:
        used, limits = amounts(item)
        return used.get(resource_type, 0 if resource_type in limits else None)

    def show(value: int) -> str:
        return amount(resource_type, value)

    name = resource_type.rpartition("/")[2]
    return AmountColumn(name, of, show, not is_usual, amounts=amounts, resource_type=resource_type)


def _aged(column: Column, now_ns: int) -> Column:
    """A time in nanoseconds becomes an age in seconds."""
    if column.show is not duration:
        return column

    def age(item: Item) -> Value:
        since = column.of(item)
        return round((now_ns - since) / _NS, 3) if isinstance(since, int) and since > 0 else None

    return Column(column.name, age, duration, column.wide, column.rare)


def _field(name: str) -> Callable[[Item], Value]:
    def of(item: Item) -> Value:
        value = item.get(name)
        return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None

    return of


def _yes(name: str) -> Callable[[Item], Value]:
    return lambda item: "yes" if item.get(name) else "no"


def _length(name: str) -> Callable[[Item], Value]:
    return lambda item: len(item.get(name) or ())


def _priority(name: str) -> Callable[[Item], Value]:
    def of(item: Item) -> Value:
        value = int(item.get(name) or 0)
        return None if value == _NO_PRIORITY else value

    return of


def _used_of(*names: str) -> Amounts:
    """Used amounts, and limits if there is a second name."""

    def of(item: Item) -> tuple[Mapping[str, int], Mapping[str, int]]:
        return item.get(names[0]) or {}, (item.get(names[1]) or {}) if len(names) > 1 else {}

    return of


# ---- where they come from --------------------------------------------------------------------------------------------


def _rms(client: RestClient, _partition: str, _state: str) -> list[Item]:
    return list(client.get("resource-managers"))


def _nodes(client: RestClient, partition: str, _state: str) -> list[Item]:
    return list(client.get(f"partition/{quoted(partition)}/nodes"))


def _queues(client: RestClient, partition: str, _state: str) -> list[Item]:
    def flat(queue: Item) -> Iterator[Item]:
        children = queue.pop("children", None) or []
        yield queue
        for child in children:
            yield from flat(child)

    return list(flat(client.get(f"partition/{quoted(partition)}/queues")))


APPLICATION_STATES = ("active", "completed", "rejected")


def _applications(client: RestClient, partition: str, state: str) -> list[Item]:
    states = APPLICATION_STATES if state == "all" else (state or "active",)
    return [
        item
        for app_state in states
        for item in client.get(f"partition/{quoted(partition)}/applications/{quoted(app_state)}") or ()
    ]


def _allocations(client: RestClient, partition: str, _state: str) -> list[Item]:
    return [
        {**allocation, "queueName": application["queueName"], "user": application["user"]}
        for application in _applications(client, partition, "")
        for allocation in application.get("allocations") or ()
    ]


def _asks(client: RestClient, partition: str, _state: str) -> list[Item]:
    return [ask for ask in client.get("explain/pending")["pending"] if ask["partition"] == partition]


def _users(client: RestClient, partition: str, _state: str) -> list[Item]:
    return list(client.get(f"partition/{quoted(partition)}/usage/users"))


def _groups(client: RestClient, partition: str, _state: str) -> list[Item]:
    return list(client.get(f"partition/{quoted(partition)}/usage/groups"))


def _usage(item: Item) -> tuple[Mapping[str, int], Mapping[str, int]]:
    root = item.get("queues") or {}
    return root.get("resourceUsage") or {}, root.get("maxResources") or {}


def _count(name: str) -> Callable[[Item], Value]:
    return lambda item: (item.get("counts") or {}).get(name)


@dataclass(frozen=True, slots=True)
class QuotaColumn(Column):
    """The use of a quota of an RM."""

    quota: str = field(kw_only=True)

    def cell(self, item: Item) -> str:
        """Returns the use, and behind a slash the limit."""
        limit = _quota(item, self.quota).get("limit")
        shown = self.format(self.of(item))
        return f"{shown}/{limit:,}" if limit else shown


def _quota(item: Item, name: str) -> Mapping[str, Any]:
    return next((quota for quota in item.get("quotas") or () if quota["name"] == name), {})


def _quota_column(name: str) -> QuotaColumn:
    def of(item: Item) -> Value:
        used: Value = _quota(item, name).get("used")
        return used

    return QuotaColumn(f"{name.replace('_', ' ')} quota", of, wide=True, quota=name)


def _key_of_allocation(item: Item) -> str:
    return f"{item['applicationID' if 'applicationID' in item else 'applicationId']}/{item['allocationKey']}"


# ---- the kinds -------------------------------------------------------------------------------------------------------

# Of what the history has: when it ended.
_ENDED = Column("ended", _field("ended"), duration, rare=True)

KINDS = (
    ResourceKind(
        "rms",
        _rms,
        lambda item: str(item["rmID"]),
        (
            Column("rm", _field("rmID")),
            Column("life", _field("life")),
            Column("since", _field("lifeSince"), duration),
            Column("paused", _yes("held")),
            Column("nodes", _count("nodes")),
            Column("applications", _count("applications")),
            Column("asks", _count("asks")),
            Column("allocations", _count("allocations")),
            Column("queues", _count("queues"), wide=True),
            Column("users", _count("users"), wide=True),
            *map(_quota_column, QuotaKind),
            Column("identity", _field("identity"), wide=True),
            Column("group", _field("policyGroup"), wide=True),
            Column("version", _field("version"), wide=True),
            Column("generation", _field("generation"), wide=True),
            Column("registered", _field("registered"), duration, wide=True),
        ),
    ),
    ResourceKind(
        "nodes",
        _nodes,
        lambda item: str(item["nodeID"]),
        (
            Column("node", _field("nodeID")),
            Column("schedulable", _yes("schedulable")),
            Column("allocations", _length("allocations")),
            _ENDED,
            Column("reserved", _yes("isReserved"), wide=True),
            Column("host", _field("hostName"), wide=True),
            Column("rack", _field("rackName"), wide=True),
        ),
        _used_of("allocated", "capacity"),
    ),
    ResourceKind(
        "queues",
        _queues,
        lambda item: str(item["queuename"]),
        (
            Column("queue", _field("queuename")),
            Column("status", _field("status")),
            Column("running", lambda item: int(item.get("runningApps") or 0)),
            _ENDED,
            Column("leaf", _yes("isLeaf"), wide=True),
            Column("managed", _yes("isManaged"), wide=True),
            Column("sort", _field("sortingPolicy"), wide=True),
            Column("preemption", _yes("preemptionEnabled"), wide=True),
        ),
        _used_of("allocatedResource", "maxResource"),
    ),
    ResourceKind(
        "applications",
        _applications,
        lambda item: str(item["applicationID"]),
        (
            Column("application", _field("applicationID")),
            Column("queue", _field("queueName")),
            Column("user", _field("user")),
            Column("state", _field("applicationState")),
            Column("allocations", _length("allocations")),
            Column("pending", _length("requests")),
            Column(
                "since",
                lambda item: max((entry["time"] for entry in item.get("stateLog") or ()), default=None),
                duration,
            ),
            _ENDED,
            Column("submitted", _field("submissionTime"), duration, wide=True),
            Column("groups", lambda item: ",".join(item.get("groups") or ()), wide=True),
            Column("placeholders", _length("placeholderData"), wide=True),
        ),
        _used_of("usedResource"),
    ),
    ResourceKind(
        "allocations",
        _allocations,
        _key_of_allocation,
        (
            Column("allocation", _field("allocationKey")),
            Column("application", _field("applicationId")),
            Column("queue", _field("queueName")),
            Column("node", _field("nodeId")),
            Column("priority", _priority("priority")),
            Column("bound", _field("bindTime"), duration),
            Column("user", _field("user"), wide=True),
            Column("placeholder", _yes("placeholder"), wide=True),
            Column("task group", _field("taskGroupName"), wide=True),
            Column("preempted", _yes("preempted"), wide=True),
        ),
        _used_of("resource"),
    ),
    ResourceKind(
        "asks",
        _asks,
        _key_of_allocation,
        (
            Column("ask", _field("allocationKey")),
            Column("application", _field("applicationID")),
            Column("queue", _field("queue")),
            Column("count", _field("count")),
            Column("priority", _priority("priority")),
            Column("reason", _field("reason")),
            Column("waiting", _field("waitingSince"), duration),
            Column("task group", _field("taskGroup"), wide=True),
            Column("why", _field("sentence"), wide=True),
        ),
        _used_of("resource"),
    ),
    ResourceKind(
        "users",
        _users,
        lambda item: str(item["userName"]),
        (
            Column("user", _field("userName")),
            Column("running", lambda item: len((item.get("queues") or {}).get("runningApplications") or ())),
        ),
        _usage,
    ),
    ResourceKind(
        "groups",
        _groups,
        lambda item: str(item["groupName"]),
        (
            Column("group", _field("groupName")),
            Column("running", lambda item: len((item.get("queues") or {}).get("runningApplications") or ())),
        ),
        _usage,
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}
