"""A read configuration as bytes, so that no process must read the same text again.

The bytes name the text by its digest. Bytes of another text, of another version or with an error give None, and the
caller reads the text.
"""

from __future__ import annotations

import hashlib
import zlib

import msgspec
from muster_core.config.patterns import InvalidPattern
from muster_core.config.queue_config import (
    ClusterConfig,
    FilterConfig,
    PartitionConfig,
    PlacementRuleConfig,
    PreemptionConfig,
    QueueConfig,
    ReservationConfig,
)

# Goes up with each change of what a text means or of the classes below.
VERSION = 3
# Limit of the decoded size. A text of 1 MiB gives about 2 MiB; aliases can give more.
BYTES_MAX = 16 << 20


class _Filter(msgspec.Struct, array_like=True):
    deny: bool
    users: tuple[str, ...]
    groups: tuple[str, ...]


class _Rule(msgspec.Struct, array_like=True):
    name: str
    create: bool
    value: str
    filter: _Filter | None
    parent: _Rule | None


class _Partition(msgspec.Struct, array_like=True):
    name: str
    root: QueueConfig
    rules: tuple[_Rule, ...]
    node_sort_policy: str
    node_sort_weights: dict[str, float]
    preemption: PreemptionConfig
    reservation: ReservationConfig
    backfill: str
    resolver: str
    of_rm: str = ""


class _Compiled(msgspec.Struct, array_like=True):
    version: int
    digest: bytes
    partitions: tuple[_Partition, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Compiled)


def digest(text: str) -> bytes:
    """Returns the digest that names a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def encode(text: str, config: ClusterConfig) -> bytes:
    """Returns the configuration that was read from a text as bytes; b"" if it is too large."""
    partitions = tuple(
        _Partition(
            partition.name,
            partition.root,
            tuple(_rule(rule) for rule in partition.placement_rules),
            partition.node_sort_policy,
            partition.node_sort_weights,
            partition.preemption,
            partition.reservation,
            partition.backfill,
            partition.user_group_resolver,
            partition.of_rm,
        )
        for partition in config.partitions
    )
    plain = _encoder.encode(_Compiled(VERSION, digest(text), partitions))
    return zlib.compress(plain) if len(plain) <= BYTES_MAX else b""


def decode(text: str, value: bytes, version: int = VERSION) -> ClusterConfig | None:
    """Returns the configuration of a text from its bytes; None: they are not of this text and this version."""
    if not value:
        return None
    try:
        inflater = zlib.decompressobj()
        compiled = _decoder.decode(inflater.decompress(value, BYTES_MAX))
        if not inflater.eof or compiled.version != version or compiled.digest != digest(text):
            return None
        return ClusterConfig(tuple(_partition(partition) for partition in compiled.partitions))
    except (zlib.error, msgspec.DecodeError, msgspec.ValidationError, InvalidPattern, RecursionError):
        return None


def _rule(rule: PlacementRuleConfig) -> _Rule:
    who = rule.filter
    return _Rule(
        rule.name,
        rule.create,
        rule.value,
        None if who is None else _Filter(who.deny, who.users, who.groups),
        None if rule.parent is None else _rule(rule.parent),
    )


def _partition(compiled: _Partition) -> PartitionConfig:
    return PartitionConfig(
        compiled.name,
        compiled.root,
        tuple(_read_rule(rule) for rule in compiled.rules),
        compiled.node_sort_policy,
        compiled.node_sort_weights,
        compiled.preemption,
        compiled.reservation,
        compiled.backfill,
        compiled.resolver,
        compiled.of_rm,
    )


def _read_rule(rule: _Rule) -> PlacementRuleConfig:
    who = rule.filter
    return PlacementRuleConfig(
        rule.name,
        rule.create,
        rule.value,
        None if who is None else FilterConfig(who.deny, who.users, who.groups),
        None if rule.parent is None else _read_rule(rule.parent),
    )
