"""The newest events, which are not exported yet, from the embedded log's file or from a running Muster's REST.

The columns are those of the history's own layout, so that one table can hold both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster_event_publisher.event_decoding import CHANGE_DETAIL_NAMES, CHANGE_TYPE_NAMES, TYPE_NAMES, enum_name

from muster_cli.errors import CommandError

if TYPE_CHECKING:
    from muster_bus.log import Record

# Highest exported id of each (RM, instance).
Exported = Mapping[tuple[str, str], int]

# Limit per RM or partition; older events must wait for their export.
EVENTS_MAX = 2_000_000
_DECODED_AT_ONCE = 10_000
_REST_COUNT = 10_000


@dataclass(slots=True)
class UnexportedEvents:
    """Events after the exported ones.

    :ivar tables: pyarrow tables with the columns of :data:`COLUMNS`.
    :ivar cut: whether there were more events than the limit.
    :ivar gaps: what could not be read of the log or over REST, one sentence each.
    """

    tables: list[Any] = field(default_factory=list)
    cut: bool = False
    gaps: list[str] = field(default_factory=list)
    last_ids: dict[tuple[str, str], int] = field(default_factory=dict)
    _events: dict[str, int] = field(default_factory=dict)

    @property
    def rms(self) -> set[str]:
        """Returns the RMs with events."""
        return set(self._events)

    def events_of(self, rm: str) -> int:
        """Returns the number of an RM's events; "": of all."""
        return self._events.get(rm, 0) if rm else sum(self._events.values())

    def add(self, table: Any) -> None:
        """Adds events."""
        self.tables.append(table)
        groups = table.group_by(["rm", "instance"]).aggregate([("id", "max"), ("id", "count")])
        for row in groups.to_pylist():
            key = (row["rm"], row["instance"])
            self.last_ids[key] = max(self.last_ids.get(key, -1), row["id_max"])
            self._events[row["rm"]] = self._events.get(row["rm"], 0) + row["id_count"]


COLUMNS = (
    "rm", "instance", "id", "timestamp_ns", "type", "type_number", "change_type", "change_type_number",
    "change_detail", "change_detail_number", "object_id", "reference_id", "message", "resource",
)  # fmt: skip


def schema() -> Any:
    """Returns the columns' types, as in the Parquet files."""
    import pyarrow as pa

    types = {"id": pa.int64(), "timestamp_ns": pa.int64(), "resource": pa.map_(pa.string(), pa.int64())}
    numbers = dict.fromkeys((name for name in COLUMNS if name.endswith("_number")), pa.int32())
    return pa.schema([(name, {**types, **numbers}.get(name, pa.string())) for name in COLUMNS])


# ---- from the embedded log ------------------------------------------------------------------------------------------


def from_log(path: Path, topic: str, exported: Exported) -> UnexportedEvents:
    """Reads the events in the log's file that are not exported: from the end of each partition back to an exported
    event.

    A partition is exported in order, so everything before an exported event is exported, too. Raises CommandError if
    the log cannot be read.
    """
    from muster_bus.backends.sqlite_file_reader import LogFile
    from muster_bus.errors import BusError, LogDamaged

    tail = UnexportedEvents()
    try:
        with LogFile(path) as file:
            for partition in file.partitions(topic):
                unexported: list[tuple[str, str, int, bytes]] = []
                passed: list[LogDamaged] = []
                for records in file.newest_first(topic, partition, passed):
                    events = list(_tracked(records))
                    new = [event for event in events if event[2] > exported.get(event[:2], -1)]
                    unexported += reversed(new)
                    if len(new) < len(events):
                        break
                    if len(unexported) >= EVENTS_MAX:
                        tail.cut = True
                        break
                _add(tail, unexported[::-1])
                tail.gaps += map(str, passed)
    except BusError as error:
        raise CommandError(str(error)) from error
    return tail


def _tracked(records: Sequence[Record]) -> Iterator[tuple[str, str, int, bytes]]:
    """Yields (RM, instance, id, value) of the events for the history."""
    from muster_bus.topics import HEADER_EVENT_ID, HEADER_INSTANCE, HEADER_RM_ID, HEADER_TRACKING

    for record in records:
        headers = dict(record.headers)
        if headers.get(HEADER_TRACKING) == b"1" and record.value is not None:
            yield (
                headers[HEADER_RM_ID].decode(),
                headers[HEADER_INSTANCE].decode(),
                int(headers[HEADER_EVENT_ID]),
                record.value,
            )


def _add(tail: UnexportedEvents, events: list[tuple[str, str, int, bytes]]) -> None:
    import pyarrow as pa
    from muster_event_publisher.history.columns import columns_of

    for start in range(0, len(events), _DECODED_AT_ONCE):
        part = events[start : start + _DECODED_AT_ONCE]
        columns = columns_of([event[3] for event in part])
        values = [
            [event[0] for event in part], [event[1] for event in part], [event[2] for event in part],
            columns.timestamp_ns, columns.type_name, columns.type_number, columns.change_type_name,
            columns.change_type_number, columns.change_detail_name, columns.change_detail_number, columns.object_id,
            columns.reference_id, columns.message, columns.resource,
        ]  # fmt: skip
        tail.add(pa.Table.from_arrays(list(map(pa.array, values, schema().types)), schema=schema()))


# ---- over REST ------------------------------------------------------------------------------------------------------


def from_rest(url: str, exported: Exported, timeout_s: float) -> UnexportedEvents:
    """Reads the events of every RM of a running Muster that are not exported. Raises CommandError if Muster does not
    answer within ``timeout_s``.
    """
    import httpx

    tail = UnexportedEvents()
    try:
        with httpx.Client(base_url=url, timeout=timeout_s) as client:
            for rm in _rms(client, exported):
                _add_from_rest(client, rm, exported, tail)
    except httpx.TimeoutException as error:
        raise CommandError(f"--http {url}: no answer within {timeout_s:g} s (--timeout-s)") from error
    except httpx.HTTPError as error:
        raise CommandError(f"--http {url}: {error or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"--http {url}: the answer is not Muster's ({type(error).__name__}: {error})") from error
    return tail


def _rms(client: Any, exported: Exported) -> list[str]:
    answer = client.get("/ws/v1/resource-managers")
    answer.raise_for_status()
    registered: list[str] = [manager["rmID"] for manager in answer.json()]
    return sorted({*registered, *(rm for rm, _ in exported)})


def _add_from_rest(client: Any, rm: str, exported: Exported, tail: UnexportedEvents) -> None:
    last_ids = {instance: last for (name, instance), last in exported.items() if name == rm}
    start, instance = 0, ""
    record_count = 0
    while True:
        answer = client.get("/ws/v1/events/batch", params={"rm": rm, "start": start, "count": _REST_COUNT})
        if answer.status_code == 404:  # no events, or the RM was removed since the last answer
            if instance:
                tail.gaps.append(f"the events of {rm} from {start:,} on are missing: the RM was removed meanwhile")
            return
        answer.raise_for_status()
        batch = answer.json()
        if not instance:
            instance = batch["InstanceUUID"]
            if last_ids.get(instance, -1) >= start:
                start = last_ids[instance] + 1
                continue
        if batch["InstanceUUID"] != instance:
            raise ValueError(f"the instance of {rm} changed meanwhile")
        records = batch["EventRecords"] or []
        if not records:
            after = int(answer.headers.get("X-Muster-Next-ID", start))
            if after <= start:
                return
            start = after  # no store has the events in between
            continue
        if record_count >= EVENTS_MAX:
            tail.gaps.append(f"the events of {rm} from {start:,} on are missing: {EVENTS_MAX:,} are read at most")
            return
        missing = set(_spans(answer.headers.get("X-Muster-Events-Missing", "")))
        rows = [(start + index, record) for index, record in enumerate(records) if start + index not in missing]
        _add_json(tail, rm, instance, rows)
        start, record_count = start + len(records), record_count + len(records)


def _spans(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _add_json(tail: UnexportedEvents, rm: str, instance: str, rows: Iterable[tuple[int, dict[str, Any]]]) -> None:
    import pyarrow as pa

    table_rows = []
    for event_id, record in rows:
        kind, change, detail = (record.get(name, 0) for name in ("type", "eventChangeType", "eventChangeDetail"))
        resources = (record.get("resource") or {}).get("resources") or {}
        table_rows.append(
            {
                "rm": rm, "instance": instance, "id": event_id, "timestamp_ns": record.get("timestampNano", 0),
                "type": enum_name(TYPE_NAMES, kind), "type_number": kind,
                "change_type": enum_name(CHANGE_TYPE_NAMES, change), "change_type_number": change,
                "change_detail": enum_name(CHANGE_DETAIL_NAMES, detail), "change_detail_number": detail,
                "object_id": record.get("objectID", ""), "reference_id": record.get("referenceID", ""),
                "message": record.get("message", ""),
                "resource": sorted((name, quantity.get("value", 0)) for name, quantity in resources.items()),
            }
        )  # fmt: skip
    if table_rows:
        tail.add(pa.Table.from_pylist(table_rows, schema=schema()))
