"""An RM's event settings: every key, Go's reading of values, kept values and warnings."""

from __future__ import annotations

from dataclasses import fields

import pytest
from muster_runtime.event_settings import DEFAULT, KEYS, EventSettings, keys_of, merged, read

NAMES = [field.name for field in fields(EventSettings) if field.name != "given"]


def test_without_keys_everything_is_as_the_seed_says() -> None:
    settings, problems = read({"log.level": "DEBUG"})
    assert settings == EventSettings(True, False, 1_000, 100_000, 10_000, 100, 15, frozenset())
    assert problems == []


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("event.trackingEventsEnabled", "tracking_enabled"),
        ("event.trackingEnabled", "tracking_enabled"),
        ("event.requestEventsEnabled", "request_events_enabled"),
        ("event.requestStoreCapacity", "request_store_capacity"),
        ("event.requestCapacity", "request_store_capacity"),
        ("event.ringBufferCapacity", "ring_buffer_capacity"),
        ("event.RESTResponseSize", "rest_response_size"),
        ("event.maxStreams", "max_streams"),
        ("event.maxStreamsPerHost", "max_streams_per_host"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "service."])
def test_every_key_with_and_without_the_prefix(prefix: str, key: str, name: str) -> None:
    old = getattr(DEFAULT, name)
    text, value = ("true" if not old else "false", not old) if isinstance(old, bool) else ("7", 7)
    settings, problems = read({prefix + key: text})
    assert problems == []
    assert getattr(settings, name) == value
    assert settings.given == {name}
    assert prefix + key in keys_of(name)
    assert prefix + key in KEYS


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_texts_that_go_reads_as_true(text: str) -> None:
    assert read({"event.requestEventsEnabled": text})[0].request_events_enabled is True


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_texts_that_go_reads_as_false(text: str) -> None:
    assert read({"event.trackingEnabled": text})[0].tracking_enabled is False


@pytest.mark.parametrize("text", ["", " ", "yes", "tRUE", "true ", "2", "on", "TrUe"])
def test_a_bad_boolean_keeps_what_was(text: str) -> None:
    before, _ = read({"event.trackingEnabled": "false"})
    settings, problems = read({"event.trackingEnabled": text}, before)
    assert settings == before
    (problem,) = problems
    assert problem == (
        f'event.trackingEnabled: "{text}" is not one of 1, t, T, TRUE, true, True, 0, f, F, FALSE, false, False; '
        "false stays in use"
    )


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("007", 7), ("4294967295", 4294967295), ("0" * 5000 + "9", 9)])
def test_texts_that_go_reads_as_an_unsigned_integer(text: str, value: int) -> None:
    assert read({"event.ringBufferCapacity": text}) == (
        EventSettings(ring_buffer_capacity=value, given=frozenset({"ring_buffer_capacity"})),
        [],
    )


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1 ", "1_000", "0x10", "1e3", "1.0", "4294967296", "9" * 5000, "٣", "²"]
)
def test_a_bad_integer_keeps_what_was(text: str) -> None:
    before, _ = read({"event.ringBufferCapacity": "5"})
    settings, (problem,) = read({"event.ringBufferCapacity": text}, before)
    assert settings == before
    assert problem.startswith('event.ringBufferCapacity: "')
    assert problem.endswith(" is not an unsigned integer of at most 4294967295, digits only; 5 stays in use")
    assert len(problem) < 300


def test_a_bad_value_before_which_there_was_none_leaves_the_default_and_is_not_given() -> None:
    settings, (problem,) = read({"service.event.maxStreams": "many"})
    assert settings == DEFAULT
    assert problem.endswith("100 stays in use")


def test_an_absent_key_returns_to_its_default() -> None:
    before, _ = read({"event.maxStreams": "3", "event.trackingEnabled": "false"})
    assert read({"event.maxStreams": "4"}, before)[0] == EventSettings(max_streams=4, given=frozenset({"max_streams"}))


def test_of_two_spellings_the_seeds_with_its_prefix_counts_and_the_other_is_named() -> None:
    both = {"event.requestCapacity": "2", "service.event.requestStoreCapacity": "3"}
    settings, (problem,) = read(both)
    assert settings.request_store_capacity == 3
    assert problem == (
        'event.requestCapacity: "2" is not used, because service.event.requestStoreCapacity sets the same and differs'
    )
    assert read({**both, "event.requestCapacity": "3"})[1] == []


def test_an_unknown_key_is_named_with_a_suggestion() -> None:
    settings, problems = read({"event.ringbufferCapacity": "5", "service.event.size": "1", "service.eventCapacity": ""})
    assert settings == DEFAULT
    assert problems[0] == (
        "event.ringbufferCapacity: not a setting of events, so it has no effect; did you mean event.ringBufferCapacity?"
    )
    assert problems[1] == (
        "service.event.size: not a setting of events, so it has no effect; expected service.event. with one of "
        "trackingEventsEnabled, requestEventsEnabled, requestStoreCapacity, ringBufferCapacity, RESTResponseSize, "
        "maxStreams, maxStreamsPerHost"
    )
    assert len(problems) == 2


def test_every_field_has_its_keys() -> None:
    assert {name for name in NAMES if keys_of(name)} == set(NAMES)


@pytest.mark.parametrize("key", ["event.ringBufferCapacity", "service.event.trackingEventsEnabled"])
def test_settings_that_turn_tracking_off(key: str) -> None:
    assert DEFAULT.tracks
    assert not read({key: "0"})[0].tracks


def test_settings_that_turn_request_events_on_and_off() -> None:
    assert not DEFAULT.tells_requests
    on = {"event.requestEventsEnabled": "true"}
    assert read(on)[0].tells_requests
    assert not read({**on, "event.requestStoreCapacity": "0"})[0].tells_requests


def test_added_settings_are_merged_into_the_present_ones() -> None:
    assert merged({"a": "1", "event.maxStreams": "3"}, {"b": "2", "event.maxStreamsPerHost": "4"}) == (
        {"a": "1", "event.maxStreams": "3", "b": "2", "event.maxStreamsPerHost": "4"},
        [],
    )


def test_a_bad_value_is_not_taken_in_so_that_the_record_alone_says_what_is_in_use() -> None:
    said = {"event.maxStreams": "3"}
    extra, (problem,) = merged(said, {"event.maxStreams": "many", "other": "x"})
    assert extra == {"event.maxStreams": "3", "other": "x"}
    assert problem.startswith('event.maxStreams: "many" is not ')
    assert problem.endswith("; 3 stays in use")
    assert merged({}, {"event.maxStreams": "many"})[0] == {}


def test_the_newer_of_two_names_of_one_setting_counts() -> None:
    said = {"service.event.requestStoreCapacity": "3"}
    extra, problems = merged(said, {"event.requestCapacity": "5"})
    assert (extra, problems) == ({"event.requestCapacity": "5"}, [])
    assert merged(said, {"event.requestCapacity": "bad"})[0] == said


def test_an_unknown_key_is_kept_like_every_other() -> None:
    assert merged({}, {"event.other": "x"})[0] == {"event.other": "x"}
