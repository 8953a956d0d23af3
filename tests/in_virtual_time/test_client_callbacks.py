"""RmClient's callback stream at real gateways, over gateways that end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from integration.gateway_rig import Rig, crash
from muster_client import Callbacks, ClientSettings, RmClient
from muster_client.errors import ReregistrationNeeded
from muster_gateway.service import Gateway
from muster_proto.muster.v1 import callbacks_pb2 as pb
from virtual.plugin import advance

QUICK = ClientSettings(backoff_min_ms=10, backoff_max_ms=100, close_timeout_s=1, linger_s=0.1, backoff_seed=1)


def client(*gateways: Gateway, **callbacks: Any) -> RmClient:
    address = "ipv4:" + ",".join(f"127.0.0.1:{gateway.grpc_port}" for gateway in gateways)
    return RmClient(address, "rm", callbacks=Callbacks(**callbacks), settings=QUICK)


def answered(world: Rig) -> list[int]:
    return [answer.id for said in world.scheduler.answers("rm") for answer in said.predicates]


def serving_of(gateways: list[Gateway]) -> Gateway | None:
    """Return the gateway that has the RM's stream; None: the client is between two streams."""
    return next((each for each in gateways if any(stream.rm_id == "rm" for stream in each._table.all())), None)


@pytest.mark.parametrize("kills", [False, True], ids=["stops", "dies"])
async def test_every_question_is_answered_while_gateways_come_and_go(world: Rig, *, kills: bool) -> None:
    gateways = [await world.gateway() for _ in range(3)]
    asked: list[int] = []

    async def predicates(question: pb.PredicatesQuestion) -> bool:
        asked.append(question.id)
        await asyncio.sleep(0.002)
        return True

    async with client(*gateways, predicates=predicates) as rm:
        await rm.register()
        await advance()
        assert world.scheduler.notes("rm"), "the stream is open"
        for turn in range(3):
            for number in range(turn * 40 + 1, turn * 40 + 41, 4):
                await world.scheduler.ask("rm", *range(number, number + 4))
                await asyncio.sleep(0.005)
            if turn < 2:
                await advance()
                serving: Gateway = serving_of(gateways)
                assert serving, "the client is connected again"
                gateways.remove(serving)
                await (crash(serving) if kills else serving.stop())
        await advance()
        assert set(answered(world)) == set(range(1, 121)), "each question has an answer"
        assert rm.missing_sequences() == []
    assert sorted(set(asked)) == list(range(1, 121))
    assert len(asked) == 120, "each was asked once, because the client names its last processed message"


async def test_events_go_on_where_they_were(world: Rig) -> None:
    first, second = await world.gateway(), await world.gateway()
    got: list[int] = []
    async with client(first, second, on_events=lambda events: got.extend(event.id for event in events)) as rm:
        await rm.register()
        await advance()
        assert world.scheduler.notes("rm"), "the stream is open"
        await world.scheduler.happen("rm", *"abc")
        await advance()
        assert got == [0, 1, 2], "they are heard"
        await advance()
        serving: Gateway = serving_of([first, second])
        assert serving, "the client is connected"
        stopping = asyncio.create_task(serving.stop())
        await world.scheduler.happen("rm", *"defghi")
        await stopping
        await world.scheduler.happen("rm", *"jkl")
        await advance()
        assert len(got) >= 12, "the rest is heard"
    assert got == list(range(12))


async def test_a_new_registration_opens_a_new_stream(world: Rig) -> None:
    gateway = await world.gateway()
    async with client(gateway, predicates=lambda _: True) as rm:
        await rm.register()
        await advance()
        assert world.scheduler.notes("rm"), "the stream is open"
        await world.scheduler.ask("rm", 1)
        await advance()
        assert answered(world) == [1], "it answers"
        await rm.register()
        await advance()
        assert sum(is_open for is_open, _ in world.scheduler.notes("rm")) == 2, "it is open again"
        await world.scheduler.ask("rm", 2)
        await advance()
        assert answered(world) == [1, 2], "it answers again"


async def test_a_stopped_rm_is_asked_to_register(world: Rig) -> None:
    gateway = await world.gateway()
    async with client(gateway, predicates=lambda _: True) as rm:
        await rm.register()
        await advance()
        assert world.scheduler.notes("rm"), "the stream is open"
        life = gateway._servicer._dependencies.session_manager  # type: ignore[union-attr]
        await life.shut_down("rm")
        await life.sweep(gateway._table)
        with pytest.raises(ReregistrationNeeded, match="is stopped"):
            async with asyncio.timeout(60):
                await rm.wait()


async def test_a_configuration_is_answered_through_a_real_gateway(world: Rig) -> None:
    gateway = await world.gateway()
    async with client(gateway, predicates=lambda _: True) as rm:
        await rm.register()
        assert (await rm.update_configuration("good")).changes == ("[default] root.a maxapplications: not set -> 3",)
        refused = await rm.update_configuration("bad")
        assert not refused.accepted
        assert (refused.problems[0].line, refused.problems[0].message) == (3, "is bad")
