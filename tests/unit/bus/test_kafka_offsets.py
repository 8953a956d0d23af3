"""The group's offset: the effect of each answer of a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import errors
from muster_bus.backends import kafka_stable_offset
from muster_bus.backends.kafka import KafkaLog
from muster_bus.backends.kafka_stable_offset import stable_offset
from muster_bus.clock import SystemClock
from muster_bus.errors import LogUnavailable
from muster_bus.settings import LogSettings

Answer = bytes | errors.KafkaError


def answer(error: int = 0, *, offset: int = 7, partition_error: int = 0, topic: str = "t") -> bytes:
    """An answer as a broker encodes it; with an error as a whole it holds no topics."""
    partitions = [(0, offset, -1, "", partition_error, {})]
    topics = [] if error else [(topic, partitions, {})]
    return bytes(kafka_stable_offset._StableOffsetsResponse.SCHEMA.encode((0, topics, error, {})))


class Coordinator:
    """Stands in for aiokafka's client: gives one answer after the other, then repeats the last."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def coordinator_lookup(self, kind: object, group: str) -> int:
        return 1

    async def ready(self, node: int, *, group: object) -> bool:
        return True

    async def send(self, node: int, request: object, *, group: object) -> Any:
        self.asked += 1
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(given, errors.KafkaError):
            raise given
        return kafka_stable_offset._StableOffsetsResponse.decode(given)


async def ask(*answers: Answer) -> tuple[int | None, int]:
    coordinator = Coordinator(answers)
    offset = await asyncio.wait_for(stable_offset(coordinator, "g", "t", 0), 10)
    return offset, coordinator.asked


async def test_an_offset_or_none() -> None:
    assert await ask(answer(offset=7)) == (7, 1)
    assert await ask(answer(offset=-1)) == (None, 1)


@pytest.mark.parametrize(
    "code", [3, 7, 13, 14, 15, 16, 72, 74, 75, 88, 89], ids=lambda code: errors.for_code(code).__name__ + f"-{code}"
)
async def test_a_temporary_error_is_retried(code: int) -> None:
    assert await ask(answer(code), answer(partition_error=code), answer(offset=3)) == (3, 3)


async def test_a_coordinator_that_goes_is_looked_for_again() -> None:
    assert await ask(errors.NodeNotReadyError(), errors.KafkaConnectionError(), answer(offset=3)) == (3, 3)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (answer(30), "GroupAuthorizationFailedError"),
        (answer(partition_error=29), "TopicAuthorizationFailedError"),
        (answer(24), "InvalidGroupIdError"),
        (answer(-1), "error code -1"),
        (answer(9999), "error code 9999"),
        (answer(topic="another"), r"no offset of t\[0\]"),
    ],
)
async def test_a_permanent_error_is_raised_by_its_name(given: bytes, name: str) -> None:
    log = KafkaLog([], LogSettings(backend="kafka"), SystemClock())
    with pytest.raises(LogUnavailable, match=name):
        await log.bounded(stable_offset(Coordinator([given]), "g", "t", 0), "committed position")


async def test_a_coordinator_that_never_is_ready_ends_in_time() -> None:
    log = KafkaLog([], LogSettings(backend="kafka", kafka_start_timeout_s=0.05), SystemClock())
    with pytest.raises(LogUnavailable, match=r"committed position not done in 0\.05 s"):
        await log.bounded(stable_offset(Coordinator([answer(14)]), "g", "t", 0), "committed position")
