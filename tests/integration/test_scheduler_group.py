"""Two and three schedulers as processes under load: started, killed, paused and stopped. Each ask is answered exactly
once, and no partition moves without need.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from chaos.harness import assert_counted_through, event_ids, folded_state
from group_rig import DirectRm, Schedulers, one_rm_per_partition, opened
from muster_bus.clock import SystemClock
from muster_informers.settings import ExternalSettings
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(600)]

PARTITIONS = 4
PACE_S = 0.02  # between two asks of an RM
NODES, ROOM = 20, 1_000


async def test_schedulers_come_go_die_and_pause_under_load(tmp_path: Path, kafka_bootstrap: str) -> None:
    async with opened(kafka_bootstrap, "group", PARTITIONS) as (settings, log):
        topics = settings.topics()
        writer = await log.writer("test")
        # (A scheduler that gets no processor time for some seconds keeps its partitions.)
        schedulers = Schedulers(tmp_path, settings, 3, {"MUSTER_SCHEDULER__SESSION_TIMEOUT_S": "10"})
        rms = [DirectRm(log, topics, writer, rm_id) for rm_id in one_rm_per_partition(topics)]
        load: asyncio.Task[None] | None = None

        async def ask() -> None:
            while True:
                for rm in rms:
                    await rm.ask()
                await asyncio.sleep(PACE_S)

        async def answered() -> None:
            """Wait until all asks so far are answered."""
            asked = [(rm, set(rm.sent)) for rm in rms]
            await eventually(lambda: all(keys <= rm.allocated.keys() for rm, keys in asked), "all asks are answered")

        try:
            # 1 two schedulers, and load on all partitions
            schedulers.start(0, 1)
            await schedulers.settled([0, 1], PARTITIONS)
            await asyncio.gather(*(rm.start(NODES, ROOM) for rm in rms))
            load = asyncio.create_task(ask())
            await answered()
            # 2 a third one: some partitions move to it, none between the others
            before = await schedulers.settled([0, 1], PARTITIONS)
            schedulers.start(2)
            after = await schedulers.settled([0, 1, 2], PARTITIONS)
            assert all(after[number] <= before[number] for number in (0, 1))
            await answered()
            # 3 kill -9: the others keep theirs and share its partitions
            dead, living = 0, [1, 2]
            schedulers.processes[dead].kill()
            left = await schedulers.settled(living, PARTITIONS)
            assert all(left[number] >= after[number] for number in living)
            await answered()
            # 4 started again
            schedulers.start(dead)
            before = await schedulers.settled([0, 1, 2], PARTITIONS)
            # 5 paused: the others take over; then it continues, writes nothing, and is a member again
            paused = next(number for number in (0, 1, 2) if before[number])
            others = [number for number in (0, 1, 2) if number != paused]
            schedulers.send(paused, signal.SIGSTOP)

            async def without_it() -> bool:
                owned = await schedulers.owned(others)
                return before[paused] <= set.union(*owned.values())

            await eventually(without_it, "the others own what the paused one had", every_s=0.05)
            await answered()
            schedulers.send(paused, signal.SIGCONT)
            before = await schedulers.settled([0, 1, 2], PARTITIONS)
            await answered()
            assert schedulers.processes[paused].running, "a fenced member goes back to the group"
            # 6 stopped: it gives its partitions away first
            leaving = next(number for number in (2, 1) if before[number])
            staying = [number for number in (0, 1, 2) if number != leaving]
            assert await asyncio.to_thread(schedulers.processes[leaving].stop) == 0
            left = await schedulers.settled(staying, PARTITIONS)
            assert all(left[number] >= before[number] for number in staying)
            await answered()
            load.cancel()
            # 7 the books
            await answered()
            for rm in rms:
                assert set(rm.answers) == set(rm.sent), rm.rm_id
                assert set(rm.answers.values()) == {1}, "an ask was answered twice"
                assert rm.rejected == []
                assert_counted_through(rm.sequences, 1, f"responses of {rm.rm_id}")
                state = await folded_state(log, topics, rm.rm_id)
                placements = state.placements()
                assert set(placements) == set(rm.sent)
                assert set(placements.values()) == {1}
                assert state.overcommitted() == []
                assert_counted_through(await event_ids(log, topics, rm.rm_id), 0, f"events of {rm.rm_id}")
            for number in staying:

                async def all_is_well(number: int = number) -> bool:
                    return (await schedulers.health(number)).get("problems") == []

                await eventually(all_is_well, f"scheduler {number} has no problems")
                assert b"worker.failed" not in schedulers.processes[number].log_file.read_bytes()
        except BaseException:
            print(schedulers.logs())
            raise
        finally:
            if load is not None:
                load.cancel()
            for rm in rms:
                await rm.stop()
            await schedulers.stop()


@pytest.mark.parametrize("own_process", [False, True])
async def test_informers_go_with_the_partition_of_their_rm(
    tmp_path: Path, kafka_bootstrap: str, own_process: bool
) -> None:
    """The next owner lists again before it decides."""
    path = tmp_path / "hosts.yaml"
    path.write_text("[]\n")
    async with opened(kafka_bootstrap, "outside", 2) as (settings, log):
        topics = settings.topics()
        rm_id = one_rm_per_partition(topics)[1]
        table = {"kind": "file", "rm": rm_id, "path": str(path)}
        external = ExternalSettings.model_validate({"informers": {"hosts": table}, "own_process": own_process})
        scheduler = SchedulerSettings(external=external)
        rm = DirectRm(log, topics, await log.writer("test"), rm_id)
        first, second = (SchedulerService(scheduler, log, topics, SystemClock()) for _ in range(2))
        try:
            await first.start()
            await eventually(first.healthy)
            await rm.start(2, 100)
            await rm.ask(5)
            await eventually(lambda: rm.waiting == 0)
            lives = [gate_life(first)]
            await second.start()
            await eventually(lambda: owns(second) and owns(first) and second.facts()["warm"] and first.facts()["warm"])
            owner, other = (first, second) if 1 in owns(first) else (second, first)
            await eventually(owner.healthy)
            lives.append(gate_life(owner))
            await owner.stop()
            await eventually(lambda: owns(other) == [0, 1])
            await eventually(other.healthy)
            lives.append(gate_life(other))
            await rm.ask(5)
            await eventually(lambda: rm.waiting == 0)

            async def all_is_well() -> bool:
                return await other.problems() == []

            await eventually(all_is_well, "it has no problems")
            assert lives[2] not in lives[:2], "each ownership has another life"
            assert set(rm.answers.values()) == {1}
        finally:
            await rm.stop()
            for service in (first, second):
                await service.stop()


def owns(service: SchedulerService) -> list[int]:
    found = service.facts()["partitions"]
    assert isinstance(found, list)
    return found


def gate_life(service: SchedulerService) -> str:
    return service._outside_of(1).gate.incarnation
