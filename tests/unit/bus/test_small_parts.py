"""Clock, topics, settings: the parts that need no log."""

from __future__ import annotations

import pytest
from manual_clock import ManualClock
from muster_bus.clock import SystemClock
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.metrics import Metric
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics, event_id_of, parse_state_key, state_key, state_key_in
from pydantic import ValidationError


def test_the_manual_clock_moves_by_advance_and_never_back() -> None:
    clock = ManualClock(start_ns=5)
    assert (clock.now_ns(), clock.monotonic()) == (5, 0.0)
    clock.advance(1.5)
    assert (clock.now_ns(), clock.monotonic()) == (1_500_000_005, 1.5)
    with pytest.raises(ValueError, match=r"-1: time does not go back"):
        clock.advance(-1)


@pytest.mark.parametrize("rm_id", ["rm", "a/b", "100%", "%2F", "a%2Fb/%25", "", "漢/字"])
@pytest.mark.parametrize("part", ["x", "root/a", "%", "%252F"])
def test_state_keys_come_back(rm_id: str, part: str) -> None:
    key = state_key(rm_id, "application", part, "7")
    assert parse_state_key(key) == (rm_id, "application", (part, "7"))
    assert key.count(b"/") == 3
    assert state_key_in(rm_id, "ext", (part, rm_id), part) == state_key(rm_id, "ext", part, rm_id, part)


@pytest.mark.parametrize(
    ("header", "number"),
    [
        (b"0", 0), (b"007", 7), (str(2**63 - 1).encode(), 2**63 - 1), (str(2**63).encode(), None), (None, None),
        (b"", None), (b"-1", None), (b"+1", None), (b"1_0", None), (b" 1", None), (b"9" * 5_000, None),
        ("\u0663".encode(), None),
    ],
)  # fmt: skip
def test_ids_of_events_are_read_whatever_they_hold(header: bytes | None, number: int | None) -> None:
    assert event_id_of(header) == number


def test_known_values_of_kafkas_hash() -> None:
    """Values of Kafka's own tests of its partitioner (UtilsTest): murmur2 as a signed number."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    topics = Topics(partitions=1_000_003)
    for data, murmur2 in known.items():
        assert topics.partition_of(data.decode()) == (murmur2 & 0x7FFFFFFF) % 1_000_003


@pytest.mark.parametrize("backend", ["memory", "sqlite", "kafka"])
async def test_settings_make_each_log_without_touching_it(backend: str) -> None:
    log = make_log(LogSettings.model_validate({"backend": backend}), SystemClock())
    assert isinstance(log, Log)


def test_settings_name_what_is_wrong() -> None:
    with pytest.raises(ValidationError, match="partitions"):
        LogSettings(partitions=0)
    with pytest.raises(ValidationError, match="kafka_min_insync_replicas 2: at most replication"):
        LogSettings(kafka_min_insync_replicas=2)
    with pytest.raises(ValidationError, match=r"transaction_deadline_s 10\.0: less than kafka_transaction_timeout_s"):
        LogSettings(transaction_deadline_s=10.0)
    with pytest.raises(ValidationError, match="unknown_field"):
        LogSettings.model_validate({"unknown_field": 1})


def test_the_password_does_not_show() -> None:
    settings = LogSettings.model_validate(
        {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_username": "u", "kafka_sasl_password": "s3cret"}
    )
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in settings.model_dump_json()


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in LogSettings.model_fields.items() if not field.description] == []


def test_retention_reaches_the_topics() -> None:
    specs = {spec.name: spec for spec in LogSettings(topic_prefix="x.", responses_retention_s=60).topics().specs()}
    assert specs["x.si.responses.v1"].retention_ms == 60_000
    assert specs["x.si.state.v1"].cleanup == "compact"


def test_derived_topics_are_there_unless_they_are_not_wanted() -> None:
    wanted = {spec.name: spec for spec in LogSettings(topic_prefix="x.", usage_retention_s=60).topics().specs()}
    without = {spec.name for spec in LogSettings(topic_prefix="x.", derived_topics=False).topics().specs()}
    kinds = ("app", "node", "queue", "request", "usergroup")
    derived = {*(f"x.si.events.{kind}.v1" for kind in kinds), "x.si.usage.v1", "x.si.usage-state.v1"}
    assert wanted.keys() - without == derived
    assert (wanted["x.si.usage.v1"].cleanup, wanted["x.si.usage.v1"].retention_ms) == ("compact,delete", 60_000)
    assert wanted["x.si.usage-state.v1"].cleanup == "compact"
    assert wanted["x.si.events.app.v1"].retention_ms == wanted["x.si.events.v1"].retention_ms


def test_metric_names_are_ours() -> None:
    assert all(name.value.startswith("muster_bus_") for name in Metric)
