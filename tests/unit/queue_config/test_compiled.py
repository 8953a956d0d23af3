"""A read configuration as bytes."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from muster_core.config.queue_config import DEFAULT_CONFIG, ClusterConfig
from muster_queue_config import config_codec
from muster_queue_config.queue_yaml import load_queue_config, load_recorded

# Each key of a configuration once.
FULL = """
partitions:
  - name: default
    nodesortpolicy: {type: binpacking, resourceweights: {vcore: 2, memory: 0.5}}
    preemption: {enabled: false, quotapreemptionenabled: true, optout: last}
    reservation: {enabled: true, delay: 3s, timeout: 1h}
    usergroupresolver: {type: os}
    placementrules:
      - {name: fixed, value: root.a, filter: {type: allow, users: ['^a.*$'], groups: [ops, dev]}}
      - name: tag
        value: namespace
        create: true
        parent: {name: user, create: true, filter: {type: deny, users: [bob]}}
    limits:
      - {limit: all, users: ['*'], maxapplications: 100}
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: a
            adminacl: ann ops
            maxapplications: 7
            properties: {application.sort.policy: fifo}
            resources: {guaranteed: {vcore: 1}, max: {vcore: 2, memory: 9223372036854775807}}
            limits: [{limit: some, users: [ann], groups: [ops], maxresources: {vcore: 1}, maxapplications: 5}]
          - name: b
            parent: true
            childtemplate:
              {maxapplications: 3, properties: {application.sort.policy: fifo}, resources: {max: {vcore: 1}}}
  - name: gpu
    queues: [{name: root}]
"""


def read(text: str) -> ClusterConfig:
    config, problems = load_queue_config(text)
    assert config is not None, problems
    return config


def test_a_configuration_comes_back_whole() -> None:
    config = read(FULL)
    again = config_codec.decode(FULL, config_codec.encode(FULL, config))
    assert again == config
    rules, expected = (each.partitions[0].placement_rules for each in (again, config))
    for user, groups in (("ann", ()), ("bob", ("dev",)), ("bob", ("none",))):
        for rule, other in zip(rules, expected, strict=True):
            assert rule.filter is None or rule.filter.matches(user, groups) is other.filter.matches(user, groups)


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: b"",
        lambda value: value[:-3],
        lambda value: b"no zlib",
        lambda value: zlib.compress(b"\xc1"),
        lambda value: zlib.compress(zlib.decompress(value)[:-1]),
        lambda value: zlib.compress(
            zlib.decompress(value).replace(bytes([0x93, config_codec.VERSION]), b"\x93\x7f", 1)
        ),
    ],
    ids=["nothing", "cut", "not compressed", "no message", "half a message", "another version"],
)
def test_bytes_that_cannot_be_used_are_not_used(damage: object) -> None:
    value = config_codec.encode(FULL, read(FULL))
    damaged = damage(value)  # type: ignore[operator]
    assert config_codec.decode(FULL, damaged) is None
    config, anew, _ = load_recorded(FULL, damaged)
    assert config == read(FULL)
    assert anew == value


def test_bytes_of_another_text_are_not_used() -> None:
    assert config_codec.decode(FULL + "#", config_codec.encode(FULL, read(FULL))) is None


def test_a_bomb_is_not_inflated() -> None:
    bomb = zlib.compress(b"\x93" + bytes(config_codec.BYTES_MAX * 4))
    assert config_codec.decode(FULL, bomb) is None


def test_a_recorded_text_is_not_read_when_its_configuration_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    value = config_codec.encode(FULL, read(FULL))
    monkeypatch.setattr("muster_queue_config.queue_yaml.read_tree", None)
    config, again, problems = load_recorded(FULL, value)
    assert config is not None
    assert (again, problems) == (value, [])
    assert load_recorded(" ", b"") == (DEFAULT_CONFIG, b"", [])


def test_a_recorded_text_that_only_the_old_reader_takes_is_read() -> None:
    text = "partitions: [{name: default, queues: [{name: root, properties: {a: {? b}}}]}]"
    old = "%YAML 1.2\n---\npartitions:\n- name: default\n  queues:\n  - name: root\n    properties: {a: x}\n"
    assert load_queue_config(text)[0] is None
    assert load_recorded(old, b"")[0] is not None


def test_a_partition_keeps_the_name_that_an_earlier_version_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records have that name. (In version 2 the brackets of ``[rm]name`` were a part of it.)"""
    text = "partitions: [{name: '[rm7]batch', queues: []}]"
    config, _ = load_queue_config(text)
    assert config is not None
    (partition,) = config.partitions
    assert (partition.name, partition.of_rm) == ("batch", "rm7")
    with monkeypatch.context() as patch:
        patch.setattr(config_codec, "VERSION", 2)
        old = config_codec.encode(text, ClusterConfig((replace(partition, name="[rm7]batch", of_rm=""),)))
    for _ in range(2):  # the second time from what the first one kept
        kept, old, _ = load_recorded(text, old)
        assert kept is not None
        assert kept.partitions[0].name == "[rm7]batch"
    assert load_recorded(text, b"")[0] == config
