"""Turns the events of one partition of ``si.events`` into derived records. Pure; both drivers use it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from muster_bus.log import OutRecord, Record
from muster_bus.topics import (
    HEADER_EVENT_ID,
    HEADER_INSTANCE,
    HEADER_RM_ID,
    HEADER_TRACKING,
    Topics,
    event_id_of,
    parse_state_key,
    state_key,
)

from muster_event_publisher import metrics
from muster_event_publisher.derive.facts import fact_of
from muster_event_publisher.derive.fan_out import FanOut
from muster_event_publisher.derive.usage_fold import S_IN_NS, RmUsage, StateWrite, WindowUsage, seconds
from muster_event_publisher.errors import UsageMismatch
from muster_event_publisher.event_decoding import decode

# Kind and name in the key of the record that says up to which time an RM's usage is known.
COVERED_PERIOD_KIND, COVERED_PERIOD_NAME = "rm", "-"


class DerivedRecords(NamedTuple):
    """The records of a batch. A driver without transactions writes ``records`` first, then ``states`` in order."""

    records: list[OutRecord]
    states: list[OutRecord]


class PartitionDeriver:
    """Fan-out and usage of one partition.

    :param window_s: length of the windows of usage.
    :param fan_out: whether each event goes to the topic of its kind.
    :param usage: whether usage is summed.
    """

    def __init__(
        self,
        topics: Topics,
        partition: int,
        *,
        window_s: int,
        refresh_windows: int,
        fan_out: bool = True,
        usage: bool = True,
    ) -> None:
        self._topics, self._partition = topics, partition
        self._window_ns, self._refresh_windows = window_s * S_IN_NS, refresh_windows
        self._fan_out = FanOut(topics) if fan_out else None
        self._sums_usage = usage
        self._rms: dict[str, RmUsage] = {}
        self._changed: dict[str, RmUsage] = {}
        self._records: list[OutRecord] = []
        self._states: list[OutRecord] = []

    def restore(self, states: Iterable[tuple[bytes, bytes]]) -> None:
        """Takes the newest record of each key of ``si.usage-state``. Raises UsageMismatch."""
        states_by_rm: dict[str, list[tuple[tuple[str, str], bytes]]] = {}
        for key, value in states:
            rm_id, kind, (name,) = parse_state_key(key)
            states_by_rm.setdefault(rm_id, []).append(((kind, name), value))
        for rm_id, values in states_by_rm.items():
            self._rms[rm_id] = rm = RmUsage(self._window_ns, self._refresh_windows)
            other_ns = rm.restore(values)
            if other_ns is not None:
                topics = (self._topics.usage, self._topics.usage_state)
                raise UsageMismatch(self._window_ns // S_IN_NS, other_ns // S_IN_NS, *topics)

    def derive(self, records: Sequence[Record]) -> None:
        """Takes records in the order of the log. Records that are no events are skipped; the feed counts them."""
        for record in records:
            if record.value is None:
                continue
            event = decode(record.value)
            if self._fan_out is not None and (routed := self._fan_out.route(record, event)) is not None:
                self._records.append(routed)
            if not self._sums_usage:
                continue
            identity = _identity(record)
            if identity is None:
                continue
            rm_id, instance, event_id = identity
            rm = self._rm(rm_id, instance, event.timestampNano)
            if rm is not None:
                rm.apply(event_id, event.timestampNano, fact_of(event))
                self._changed[rm_id] = rm

    def flush(self) -> DerivedRecords:
        """The derived records of the events since the last flush."""
        for rm_id, rm in self._changed.items():
            self._flush(rm_id, rm)
        self._changed.clear()
        derived = DerivedRecords(self._records, self._states)
        self._records, self._states = [], []
        return derived

    def usage_of(self, rm_id: str) -> RmUsage | None:
        """The usage fold of an RM."""
        return self._rms.get(rm_id)

    def _rm(self, rm_id: str, instance: str, at_ns: int) -> RmUsage | None:
        """The usage fold of the event's RM; None for a repeated event of an instance that has ended."""
        rm = self._rms.get(rm_id)
        if rm is None:
            rm = self._rms[rm_id] = RmUsage(self._window_ns, self._refresh_windows, instance)
            self._flush(rm_id, rm)
        elif instance in rm.ended:
            return None
        elif rm.instance != instance:
            self._flush(rm_id, rm)
            rm.begin_instance(instance, at_ns)
            self._flush(rm_id, rm)
        return rm

    def _flush(self, rm_id: str, rm: RmUsage) -> None:
        shown, states = rm.flush()
        metrics.USAGE_OMITTED.inc(rm.omitted_quantities)
        rm.omitted_quantities = 0
        topic, partition = self._topics.usage, self._partition
        rm_header, instance = (HEADER_RM_ID, rm_id.encode()), (HEADER_INSTANCE, rm.instance.encode())
        for window in shown:
            key = state_key(rm_id, window.kind, window.name, str(window.start_ns // S_IN_NS))
            headers = ((HEADER_EVENT_ID, b"%d" % max(window.event_id, 0)), rm_header, instance)
            self._records.append(OutRecord(topic, partition, key, _encode_window(rm_id, window, rm.window_ns), headers))
        if states and rm.until_ns and rm.applied >= 0:  # (An instance that begins has its note with its first event.)
            key = state_key(rm_id, COVERED_PERIOD_KIND, COVERED_PERIOD_NAME)
            headers = ((HEADER_EVENT_ID, b"%d" % rm.applied), rm_header, instance)
            self._records.append(OutRecord(topic, partition, key, _encode_covered_period(rm_id, rm), headers))
        self._states += [self._state(rm_id, write) for write in states]

    def _state(self, rm_id: str, write: StateWrite) -> OutRecord:
        (kind, name), value = write
        return OutRecord(self._topics.usage_state, self._partition, state_key(rm_id, kind, name), value)


def _identity(record: Record) -> tuple[str, str, int] | None:
    """RM, instance and id of a tracking event; None for a shim event and for a record that is no event."""
    headers = dict(record.headers)
    event_id = event_id_of(headers.get(HEADER_EVENT_ID))
    if headers.get(HEADER_TRACKING) == b"0" or event_id is None:
        return None
    try:
        return headers[HEADER_RM_ID].decode(), headers[HEADER_INSTANCE].decode(), event_id
    except (KeyError, UnicodeDecodeError):
        return None


def _encode_window(rm_id: str, usage: WindowUsage, window_ns: int) -> bytes:
    """The public JSON (docs/usage.md). Integrals are exact decimals, which Python's json cannot write."""
    resource_seconds = ",".join(f"{json.dumps(name)}:{seconds(value)}" for name, value in usage.quantity_ns.items())
    fields = {
        "rm": rm_id,
        "kind": usage.kind,
        "name": usage.name,
        "window_start_s": usage.start_ns // S_IN_NS,
        "window_s": window_ns // S_IN_NS,
        "peak": usage.peak,
        "allocations": usage.allocations,
        "held": usage.allocated,
        "changed_ns": usage.at_ns,
    }
    return (_dump(fields)[:-1] + f',"resource_seconds":{{{resource_seconds}}}}}').encode()


def _encode_covered_period(rm_id: str, rm: RmUsage) -> bytes:
    fields = {
        "rm": rm_id,
        "kind": COVERED_PERIOD_KIND,
        "known_until_ns": rm.until_ns,
        "window_s": rm.window_ns // S_IN_NS,
    }
    return _dump(fields).encode()


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
