"""When a stream gives up: the table of muster_client.resumable_stream, with a clock that the test moves."""

from __future__ import annotations

from random import Random
from typing import Any

import grpc
import pytest
from manual_clock import ManualClock
from muster_client.backoff import Backoff
from muster_client.errors import Superseded
from muster_client.metrics import ClientMetrics
from muster_client.resumable_stream import ResumableStream, _ConnectionLost
from muster_client.sequences import Sequences
from muster_client.settings import ClientSettings


def stream(clock: ManualClock) -> ResumableStream[Any]:
    async def unused(*_: Any) -> None: ...

    settings = ClientSettings()
    backoff = Backoff(10, 100, clock, chance=Random(1))
    return ResumableStream(
        "allocation", unused, unused, unused, Sequences(), settings, ClientMetrics(), clock, backoff, "life"
    )


TAKEN_OVER = _ConnectionLost(grpc.StatusCode.ABORTED, "superseded: a newer stream of the RM was opened")


def test_a_fight_with_another_client_ends_with_the_fourth_loss_of_a_minute() -> None:
    clock = ManualClock()
    one = stream(clock)
    for _ in range(3):
        one._raise_if_final(TAKEN_OVER)
        clock.advance(10)
    with pytest.raises(Superseded, match="a newer stream"):
        one._raise_if_final(TAKEN_OVER)


def test_a_long_life_may_lose_its_streams_to_its_own_older_ones_now_and_then() -> None:
    clock = ManualClock()
    one = stream(clock)
    for _ in range(50):
        one._raise_if_final(TAKEN_OVER)
        clock.advance(21)
