"""Why a stream has lost its seat: the same reason, whoever notices it first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from muster_gateway.session_manager import HeldSeat, seat_loss_error
from muster_gateway.sessions.contract import NOWHERE
from muster_gateway.stream_kind import StreamKind
from unit.gateway.two_gateways import TwoGateways, answered

NODE = StreamKind.NODE
REGISTERED_AGAIN = "superseded: rmID 'rm' registered again, open new streams"
NEWER_STREAM = "superseded: a newer node stream of rmID 'rm' was opened"


async def seated(world: TwoGateways) -> HeldSeat:
    """The first gateway has a node stream of "rm"."""
    await world.first.on_registered("rm", answered(5))
    taken = await world.first.acquire_seat("rm", NODE)
    return HeldSeat("rm", NODE, taken.epoch, taken.registered_at)


async def again(world: TwoGateways) -> None:
    await world.second.on_registered("rm", answered(9))


async def newer(world: TwoGateways) -> None:
    await world.second.acquire_seat("rm", NODE)


async def again_with_a_stream(world: TwoGateways) -> None:
    await again(world)
    await newer(world)


async def forgotten(world: TwoGateways) -> None:
    await world.second.begin_forget("rm", force=True)
    await world.second.complete_forget("rm", answered(9))


async def left(world: TwoGateways) -> None:
    await world.first.release_seat("rm", NODE, 1)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (again, REGISTERED_AGAIN),
        (again_with_a_stream, REGISTERED_AGAIN),
        (newer, NEWER_STREAM),
        (lambda world: world.second.shut_down("rm"), "rmID 'rm' is stopped (the RM shut down): register again"),
        (forgotten, "rmID 'rm' is not registered: call RegisterResourceManager first"),
        (left, None),
    ],
)
async def test_a_stream_is_told_why_its_seat_is_lost(
    happens: Callable[[TwoGateways], Awaitable[None]], reason: str | None
) -> None:
    world = TwoGateways()
    held = await seated(world)
    assert seat_loss_error(await world.session(), held) is None
    await happens(world)
    lost = seat_loss_error(await world.session(), held)
    assert (str(lost) if lost is not None else None) == reason


async def test_a_stream_whose_registration_was_not_found_again_is_not_told_of_another_one() -> None:
    world = TwoGateways()
    held = (await seated(world))._replace(registered_at=NOWHERE)
    await newer(world)
    assert str(seat_loss_error(await world.session(), held)) == NEWER_STREAM
