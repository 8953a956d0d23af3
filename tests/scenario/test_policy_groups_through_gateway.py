"""Policy groups over all partitions of the log: two schedulers own half of them each, gateways come and go.

Of the members of a group each hears, when it registers, of all others that have another configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from integration.gateway_rig import PATIENCE_S, Channel
from muster_bus.clock import SystemClock
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.service import Gateway
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.v1 import admin_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from scenario.operated import LOGS, log_settings
from waiting import eventually

CLOCK = SystemClock()
PARTITIONS = 8
GROUP = "queues"


def config(leaf: str) -> str:
    return f"partitions:\n- name: default\n  queues:\n  - {{name: root, submitacl: '*', queues: [{{name: {leaf}}}]}}\n"


A, B = config("a"), config("b")


@dataclass
class World:
    """:ivar schedulers: each owns some of the partitions."""

    log: Log
    topics: Topics
    share: bool
    sessions: MemorySessions = field(default_factory=lambda: MemorySessions(CLOCK))
    schedulers: list[SchedulerService] = field(default_factory=list)
    gateways: list[tuple[Gateway, Channel]] = field(default_factory=list)

    async def schedule(self) -> None:
        """Two new schedulers take over the partitions. They have only the log."""
        for scheduler in self.schedulers:
            await scheduler.stop()
        owned: list[Sequence[int]] = [range(0, PARTITIONS, 2), range(1, PARTITIONS, 2)]
        self.schedulers = [
            SchedulerService(
                SchedulerSettings(partitions=tuple(each), share_policy_groups=self.share), self.log, self.topics, CLOCK
            )
            for each in owned
        ]
        for scheduler in self.schedulers:
            await scheduler.start()

    async def gateway(self) -> Channel:
        chosen = GatewaySettings(grpc_address="127.0.0.1:0", http_address="", stop_grace_s=0.2, lease_ttl_s=0.3)
        gateway = Gateway(chosen, self.log, self.topics, self.sessions, CLOCK)
        await gateway.start()
        channel = Channel(gateway.grpc_port)
        self.gateways.append((gateway, channel))
        return channel

    async def stop_gateways(self) -> None:
        for gateway, channel in self.gateways:
            await channel.close()
            await gateway.stop()
        self.gateways.clear()


@pytest.fixture(params=LOGS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> LogSettings:
    return log_settings(request, tmp_path, PARTITIONS)


@contextlib.asynccontextmanager
async def playing(settings: LogSettings, *, share: bool = False) -> AsyncIterator[World]:
    log = make_log(settings, CLOCK)
    await log.start()
    world = World(log, settings.topics(), share)
    try:
        await world.schedule()
        yield world
    finally:
        await world.stop_gateways()
        for scheduler in world.schedulers:
            await scheduler.stop()
        await log.close()


MEMORY = LogSettings(backend="memory", partitions=PARTITIONS)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with playing(MEMORY.model_copy(update={"topic_prefix": f"{uuid.uuid4()}."})) as it:
        yield it


async def register(channel: Channel, rm_id: str, text: str, group: str = GROUP) -> list[str]:
    request = si.RegisterResourceManagerRequest(rmID=rm_id, policyGroup=group, config=text)
    call = channel.stub.RegisterResourceManager(request, timeout=PATIENCE_S)
    await call
    told = [value.decode() for key, value in await call.trailing_metadata() if key == "muster-warning-bin"]
    return [text for text in told if "policyGroup" in text]


def others(count: int) -> list[str]:
    if not count:
        return []
    who = f"{count} other resource manager{'s' * (count > 1)} of this group"
    return [f"warning: policyGroup: '{GROUP}': {who} registered with another configuration, expected identical ones"]


async def test_each_of_14_rms_with_two_configurations_is_warned_of_all_that_differ(backend: LogSettings) -> None:
    async with playing(backend) as world:
        channel = await world.gateway()
        rm_ids = [f"rm-{number}" for number in range(14)]
        assert len({world.topics.partition_of(rm_id) for rm_id in rm_ids}) > PARTITIONS // 2
        for number, rm_id in enumerate(rm_ids):
            text = (A, B)[number % 2]
            differ = number // 2 if number % 2 == 0 else (number + 1) // 2
            assert await register(channel, rm_id, text) == others(differ)
            assert await register(channel, f"{rm_id} alone", text, group="") == []


async def test_of_14_that_register_at_once_the_last_is_warned_of_all_that_differ(world: World) -> None:
    first, second = await world.gateway(), await world.gateway()
    heard = await asyncio.gather(
        *(register((first, second)[number % 2], f"rm-{number}", (A, B)[number // 7]) for number in range(14))
    )
    assert others(7) in heard
    assert await register(first, "rm-0", A) == others(7)


async def test_restarts_of_schedulers_and_gateways_forget_no_member(world: World) -> None:
    channel = await world.gateway()
    for number in range(6):
        await register(channel, f"rm-{number}", (A, B)[number % 2])
    await world.schedule()
    assert await register(channel, "rm-0", B) == others(2)
    await world.stop_gateways()
    channel = await world.gateway()
    assert await register(channel, "rm-0", A) == others(3)
    await world.stop_gateways()
    world.sessions = MemorySessions(CLOCK)  # another store, which is filled from the log
    channel = await world.gateway()
    assert await register(channel, "rm-1", B) == others(3)
    assert await register(channel, "rm-7", A) == others(3)


async def test_a_stopped_rm_does_not_count_until_it_registers_again(world: World) -> None:
    channel = await world.gateway()
    for number in range(4):
        await register(channel, f"rm-{number}", A)
    for number in range(2):
        await channel.open(StreamKind.NODE, f"rm-{number}", muster_shutdown="true").status()

        async def is_stopped(rm_id: str = f"rm-{number}") -> bool:
            session = await world.sessions.get(rm_id)
            return session is not None and session.state is RmLifecycleState.STOPPED

        await eventually(is_stopped, "the RM is stopped")
    assert await register(channel, "rm-4", B) == others(2)
    await register(channel, "rm-0", A)
    assert await register(channel, "rm-4", B) == others(3)


async def test_an_update_or_a_validation_warns_of_new_differences(world: World) -> None:
    channel = await world.gateway()
    for number in range(5):
        await register(channel, f"rm-{number}", A)

    def warnings(answer: admin_pb2.UpdateConfigurationResponse) -> list[str]:
        assert answer.accepted
        return [f"warning: {p.path}: {p.message}" for p in answer.problems if p.path == "policyGroup"]

    request = si.UpdateConfigurationRequest(rmID="rm-0", config=B)
    assert warnings(await channel.admin.ValidateConfiguration(request, timeout=PATIENCE_S)) == others(4)
    assert warnings(await channel.configure("rm-1", A)) == []  # nothing was changed by looking
    assert warnings(await channel.configure("rm-0", B)) == others(4)
    assert warnings(await channel.configure("rm-1", B)) == others(3)
    assert await register(channel, "rm-5", A) == others(2)
    for number in (2, 3, 4, 5):
        await channel.configure(f"rm-{number}", B)
    assert await register(channel, "rm-6", B) == []  # the rollout is through


async def test_a_refused_configuration_is_not_compared_and_changes_nothing(world: World) -> None:
    channel = await world.gateway()
    await register(channel, "rm-0", A)
    with pytest.raises(Exception, match="refused"):
        await register(channel, "rm-1", "partitions: [{name: default, queues: [{name: notroot")
    answer = await channel.configure("rm-0", "partitions: [{name: default, queues: [{name: notroot")
    assert not answer.accepted
    assert await register(channel, "rm-2", A) == []


async def test_members_are_named_where_groups_are_shared() -> None:
    settings = MEMORY.model_copy(update={"topic_prefix": f"{uuid.uuid4()}."})
    async with playing(settings, share=True) as world:
        channel = await world.gateway()
        for number in range(7):
            await register(channel, f"cluster-{number}", A)
        (warning,) = await register(channel, "rm", B)
        named = "cluster-0, cluster-1, cluster-2, cluster-3, cluster-4 and 2 more of this group"
        assert warning.startswith(f"warning: policyGroup: '{GROUP}': {named} registered with another configuration")
