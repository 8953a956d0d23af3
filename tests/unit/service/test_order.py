"""What waits, or is in a set, comes in an order that neither addresses nor hashes decide."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest
from muster_bus.backends.read_ahead import ChangeSignal
from muster_core.external.errors import CursorExpired
from muster_gateway.access.active_calls import ActiveCalls
from muster_informers.sources.listing_diff import differences
from muster_runtime.caller import Caller
from muster_runtime.identity import Identity, Proof, Rights
from muster_runtime.secrets import masked_json

MANY = 64  # so that a set would have this order by chance never


async def test_readers_are_woken_in_the_order_of_their_coming() -> None:
    changing, woken = ChangeSignal(), list[int]()

    async def wait(number: int) -> None:
        await changing.wait(60)
        woken.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(MANY)]
    await asyncio.sleep(0)
    changing.signal()
    await asyncio.gather(*tasks)
    assert woken == list(range(MANY))


def test_callers_that_lose_a_right_hear_of_it_in_the_order_of_their_coming() -> None:
    calls, asked = ActiveCalls(), list[str]()

    def rights_of(caller: Caller) -> Rights:
        asked.append(caller.identity.name)
        return Rights()

    names = [f"rm-{number}" for number in range(MANY)]
    with ExitStack() as open_calls:
        for name in names:
            open_calls.enter_context(calls.track(Caller(Identity(name, Rights(), Proof.TOKEN))))
        calls.apply_rights(rights_of)
    assert asked == names


def test_of_many_ambiguous_objects_the_first_one_is_named() -> None:
    now: Any = {("node", f"n{number}"): (b"one", b"two") for number in range(MANY)}
    with pytest.raises(CursorExpired, match="node n0 is there twice"):
        differences({}, now, (), ("before", "after"))


def test_a_set_is_shown_in_order() -> None:
    texts = [f"text-{number:02}" for number in range(MANY)]
    assert masked_json(set(texts)) == texts
