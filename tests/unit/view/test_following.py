"""The follower: the state that it shows, its timing, and its behaviour in errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.clock import SystemClock
from muster_bus.errors import LogDamaged, LogUnavailable, OffsetOutOfRange
from muster_bus.log import Log, OutRecord, Record
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_core import invariants
from muster_si.positions import Stamp
from muster_state import state_folder as folding
from muster_state.state_folder import Pause, PauseKind, encode_registration, encode_rm
from muster_view.fold_gate import FoldGate
from muster_view.partition_follower import PartitionFollower
from muster_view.settings import ViewSettings
from structlog.testing import capture_logs
from unit.view.recorded import Bench, ClockOf, client_of
from waiting import eventually

# (While nothing can be folded, a request does not wait long for it.)
QUICK = {"retry_min_s": 0.01, "retry_max_s": 0.02, "fresh_wait_s": 0.05}


@pytest.fixture(params=["memory", "sqlite"])
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    topics, clock = Topics(partitions=2), SystemClock()
    log: Log
    if request.param == "memory":
        log = MemoryLog(topics.specs(), clock)
    else:
        settings = LogSettings(backend="sqlite", partitions=2, sqlite_path=tmp_path / "log.db")
        log = SqliteLog(topics.specs(), settings, clock)
    await log.start()
    yield Bench(log, topics, clock)
    await log.close()


async def test_records_from_before_and_during_the_start(logs: Bench) -> None:
    rm = logs.rm()
    rm.cluster.node("n1", vcore=10_000)
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k1", vcore=3_000)
    await logs.write(rm)
    async with logs.view() as view, client_of(view) as client:
        first = (await client.get("/ws/v1/explain/summary")).json()
        assert (first["allocated"], first["pending"]) == (1, 0)
        for round_ in range(5):
            rm.cluster.ask("x", f"more{round_}", vcore=1_000)
            await logs.write(rm)
            # No wait: a request sees the records that were visible when it came.
            now = (await client.get("/ws/v1/explain/summary")).json()
            assert now["allocated"] + now["pending"] == round_ + 2
        rm.cluster.release("x")
        await logs.write(rm)
        assert (await client.get("/ws/v1/explain/summary")).json()["allocated"] == 0
        for state in view.states().values():
            invariants.check(state.core)
        other = logs.rm("rm2")
        await logs.write(other)
        await eventually(lambda: list(view.states()) == ["rm1", "rm2"])


async def test_a_registration_starts_the_rm_afresh(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=1)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        again = bench.rm()
        again.info.registrations = 2
        again.cluster.node("m1", vcore=1)
        await bench.write(again)
        nodes = (await client.get("/ws/v1/partition/default/nodes")).json()
        assert [node["nodeID"] for node in nodes] == ["m1"]


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
async def test_a_large_configuration_is_read_beside_the_event_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    threads: list[int] = []
    read = folding.load_recorded

    def reading(text: str, compiled: bytes) -> Any:
        threads.append(threading.get_ident())
        return read(text, compiled)

    rm = bench.rm()
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        monkeypatch.setattr(folding, "load_recorded", reading)
        more = "".join(f", {{name: q{number}, properties: {{words: {'x' * 100}}}}}" for number in range(100 * large))
        for registrations in (1, 2):  # as another configuration, and as another registration
            rm.info.registrations = registrations
            queues = f"{{name: root, submitacl: '*', queues: [{{name: n{registrations}}}{more}]}}"
            rm.info.config = f"partitions: [{{name: default, queues: [{queues}]}}]"
            value = encode_registration(rm.info)
            await bench.commit(rm.partition, [rm.own_record(), rm.record("reg", "-", value=value)])
            async with asyncio.timeout(60):  # (reading a large one takes longer than an answer waits for new records)
                while f"n{registrations}" not in (await client.get("/ws/v1/resource-manager/configuration")).text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            names = (await client.get("/ws/v1/partition/default/queues")).json()["childNames"]
            assert f"root.n{registrations}" in names
    assert len(threads) == 2
    assert (threading.get_ident() in threads) is not large


async def test_a_configuration_that_stays_is_not_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a pause writes the record of the RM's registration again, which is frequent for some RMs."""
    read: list[str] = []
    rm = bench.rm()
    rm.info.build_info["words"] = "x" * 10_000  # a large record
    await bench.write(rm)
    async with bench.view() as view:
        monkeypatch.setattr(folding, "load_recorded", read.append)
        for number in range(1, 3):
            rm.info.pauses = (*rm.info.pauses, Pause(number, number + 1, "", PauseKind.ABSENT))
            value = encode_registration(rm.info)
            await bench.commit(rm.partition, [rm.own_record(), rm.record("reg", "-", value=value)])
        await eventually(lambda: view.states()["rm1"].info.pauses == rm.info.pauses)
    assert read == []


async def test_many_small_reads_make_the_same_state_as_one(bench: Bench) -> None:
    rm = bench.rm()
    for number in range(7):
        rm.cluster.node(f"n{number}", vcore=1_000)
        rm.cluster.app(f"x{number}", "root.b")
        rm.cluster.ask(f"x{number}", "k", vcore=400, wanted=3)
        await bench.write(rm)
    bench.clock = ClockOf(lambda: rm.cluster.now_ns)
    async with bench.view(read_records_max=1, fold_slice_ms=0.001) as small, bench.view() as large:
        rm.cluster.release("x3")
        await bench.write(rm)
        await eventually(lambda: small.lag_records() == large.lag_records() == 0)
        await large.wait_fresh()
        await small.wait_fresh()
        async with client_of(small) as one, client_of(large) as other:
            for path in ("partitions", "partition/default/queues", "partition/default/nodes", "explain/pending"):
                assert (await one.get(f"/ws/v1/{path}")).content == (await other.get(f"/ws/v1/{path}")).content


async def test_a_registration_frees_the_one_before_when_its_readers_have_their_answers(bench: Bench) -> None:
    """Without the collector, and at the latest when the last answer that began before it has ended."""
    rm = bench.rm()
    await bench.write(rm)

    async def register() -> None:
        rm.info.registrations += 1
        registered = rm.info.registrations
        await bench.commit(rm.partition, [rm.own_record(), rm.record("reg", "-", value=encode_registration(rm.info))])
        await eventually(lambda: (known := view.states().get("rm1")) and known.info.registrations == registered)

    def tree(view: Any) -> dict[str, Any]:
        (partition,) = view.states()["rm1"].core.partitions.values()
        found: dict[str, Any] = partition.queues
        return found

    async with bench.view() as view:
        ended = [tree(view)]
        paths = list(ended[0])
        assert len(paths) > 1
        with view._gate.answering():
            await register()
            assert list(ended[0]) == paths, "an answer that began before reads it"
        for _ in range(3):
            ended.append(tree(view))
            await register()
        await eventually(lambda: not any(ended))
        assert list(tree(view)) == paths


def follower(bench: Bench, **settings: object) -> PartitionFollower:
    return PartitionFollower(
        bench.log, bench.topics, bench.topics.partition_of("rm1"), ViewSettings.model_validate(settings), bench.clock,
        FoldGate(bench.clock, 1.0),
    )  # fmt: skip


async def test_a_transaction_that_a_read_cuts_is_folded_as_a_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rm = bench.rm()
    await bench.write(rm)
    following = follower(bench, read_records_max=3)
    await following.start()
    folded: list[list[str]] = []
    original = following._fold

    async def fold(records: Sequence[Record]) -> None:
        folded.append([(record.key or b"").decode().split("/", 1)[1] for record in records])
        await original(records)

    monkeypatch.setattr(following, "_fold", fold)
    for number in range(3):  # three transactions of two records
        rm.cluster.node(f"n{number}", vcore=1)
        await bench.write(rm)
    task = asyncio.create_task(following.follow())
    await eventually(lambda: len(following.rms["rm1"].core.partitions["default"].nodes) == 3)
    assert folded == [
        ["rm/-", "node/default/n0"],
        ["rm/-", "node/default/n1"],
        ["rm/-", "node/default/n2"],
    ]
    task.cancel()
    await following.close()


async def test_a_transaction_larger_than_a_read_is_folded_all_the_same(bench: Bench) -> None:
    rm = bench.rm()
    await bench.write(rm)
    following = follower(bench, read_records_max=2)
    await following.start()
    for number in range(9):
        rm.cluster.node(f"n{number}", vcore=1)
    await bench.write(rm)
    task = asyncio.create_task(following.follow())
    await eventually(lambda: len(following.rms["rm1"].core.partitions["default"].nodes) == 9)
    await eventually(lambda: following.lag_records == 0)
    task.cancel()
    await following.close()


@pytest.mark.parametrize("read_records_max", [1_000, 7])
async def test_no_reader_sees_half_of_a_transaction(bench: Bench, read_records_max: int) -> None:
    """This holds also if the fold takes several reads, or longer than a request waits for new records."""
    rm = bench.rm()
    await bench.write(rm)
    settings = {"fold_slice_ms": 1e-6, "fresh_wait_s": 0.0, "whole_wait_s": 30.0, "read_records_max": read_records_max}
    async with bench.view(**settings) as view, client_of(view) as client:
        for number in range(60):
            rm.cluster.node(f"n{number}", vcore=1)
        await bench.write(rm)
        seen: set[int] = set()
        async with asyncio.timeout(60):
            while 60 not in seen:
                answer = await client.get("/ws/v1/partition/default/nodes")
                assert answer.headers["x-muster-consistency"] == "snapshot"
                seen.add(len(answer.json()))
        assert seen <= {0, 60}


async def test_a_read_is_woken_when_its_position_is_folded(bench: Bench) -> None:
    """It need not wait for what was read together with it, and sees whole transactions."""
    rm = bench.rm()
    await bench.write(rm)
    async with bench.view(fold_awaited_slice_ms=60_000) as view:
        follower = view._of("rm1")[0]
        nodes = follower.rms["rm1"].core.partitions["default"].nodes

        async def seen(number: int) -> tuple[int, bool]:
            await follower.wait_included(Stamp(number))
            return len(nodes), follower.is_partial

        waiting = [asyncio.create_task(seen(number)) for number in (150, 3, 50)]
        await asyncio.sleep(0)
        assert view._gate.is_awaited()
        assert not view._gate.is_awaited(3_600)
        records: list[OutRecord] = []
        for number in range(1, 201):
            rm.cluster.node(f"n{number}", vcore=1)
            rm.info.stamp = Stamp(number)
            _, *states = rm.records()
            value = encode_rm(rm.info, rm.cluster.core.next_submission, len(states))
            records += [rm.record("rm", "-", value=value), *states]
        await bench.commit(rm.partition, records)
        async with asyncio.timeout(60):
            assert await asyncio.gather(*waiting) == [(150, False), (3, False), (50, False)]
        assert not view._gate.is_awaited()


async def test_an_answer_within_a_transaction_is_marked(bench: Bench) -> None:
    await bench.write(bench.rm())
    # (A read that lasts: the follower says "whole" after each one.)
    async with bench.view(fresh_wait_s=0.0, whole_wait_s=0.0, poll_s=300) as view, client_of(view) as client:
        follower = view._of("rm1")[0]
        wanted = b'[{"kind":"queue","id":"root.a"}]'
        assert (await client.get("/ws/v1/partition/default/nodes")).headers["x-muster-consistency"] == "snapshot"
        follower._whole.clear()
        follower._fresh.clear()
        assert (await client.get("/ws/v1/partition/default/nodes")).headers["x-muster-consistency"] == "object"
        refused = await client.post("/ws/v1/object-states", content=wanted)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["message"] == "A transaction is being taken in: try again"
        follower._whole.set()
        assert (await client.post("/ws/v1/object-states", content=wanted)).status_code == 200
        assert (await client.get("/ws/v1/partition/default/nodes")).headers["x-muster-consistency"] == "snapshot"


async def test_folding_pauses_without_requests_and_a_request_ends_the_pause(bench: Bench) -> None:
    rm = bench.rm()
    await bench.write(rm)
    async with bench.view(idle_after_s=0, idle_interval_s=30) as view, client_of(view) as client:
        rm.cluster.node("n1", vcore=1)
        await bench.write(rm)
        await eventually(lambda: len(view.states()["rm1"].core.partitions["default"].nodes) == 1)
        rm.cluster.node("n2", vcore=1)
        await bench.write(rm)
        await asyncio.sleep(0.05)
        assert len(view.states()["rm1"].core.partitions["default"].nodes) == 1
        assert len((await client.get("/ws/v1/partition/default/nodes")).json()) == 2


async def test_the_lag_is_shown_while_folding_is_held_back(bench: Bench) -> None:
    rm = bench.rm()
    await bench.write(rm)
    async with bench.view(snapshot_hold_s=30, fresh_wait_s=0.02) as view, client_of(view) as client:
        with view._gate.block_folding():
            rm.cluster.node("n1", vcore=1)
            await bench.write(rm)
            await eventually(lambda: view.lag_records("rm1") == 2)
            behind = await client.get("/ws/v1/partition/default/nodes")
            assert (behind.json(), behind.headers["x-muster-lag-records"]) == ([], "2")
        await eventually(lambda: view.lag_records("rm1") == 0)
        assert len((await client.get("/ws/v1/partition/default/nodes")).json()) == 1


async def test_a_long_answer_holds_folding_back_and_so_is_of_one_moment(bench: Bench) -> None:
    rm = bench.rm()
    for number in range(200):
        rm.cluster.node(f"n{number}", vcore=1)
    await bench.write(rm)
    async with bench.view(render_slice_ms=0.001, snapshot_hold_s=30) as view, client_of(view) as client:
        asked = asyncio.create_task(client.get("/ws/v1/partition/default/nodes"))
        version = view.version()
        await eventually(lambda: view._gate.is_blocked, every_s=0)
        rm.cluster.node("late", vcore=1)
        await bench.write(rm)
        answer = await asked
        assert answer.headers["x-muster-consistency"] == "snapshot"
        assert len(answer.json()) == 200
        await eventually(lambda: view.version() > version)
        assert len((await client.get("/ws/v1/partition/default/nodes")).json()) == 201


async def test_an_answer_that_takes_too_long_does_not_stop_folding(bench: Bench) -> None:
    rm = bench.rm()
    for number in range(200):
        rm.cluster.node(f"n{number}", vcore=1)
    await bench.write(rm)
    async with bench.view(render_slice_ms=0.001, snapshot_hold_s=0) as view, client_of(view) as client:
        asked = asyncio.create_task(client.get("/ws/v1/partition/default/nodes"))
        await eventually(lambda: view._gate.is_blocked, every_s=0)
        rm.cluster.node("late", vcore=1)
        await bench.write(rm)
        answer = await asked
        assert answer.headers["x-muster-consistency"] == "object"
        assert len(answer.json()) == 200


async def _nodes(client: httpx.AsyncClient, count: int) -> bool:
    """Whether so many nodes are shown."""
    return len((await client.get("/ws/v1/partition/default/nodes")).json()) == count


async def test_the_log_may_be_away_for_a_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rm = bench.rm()
    await bench.write(rm)
    async with bench.view(poll_s=0.01, **QUICK) as view, client_of(view) as client:
        followed = view._followers[rm.partition]
        assert followed._reader is not None
        original, away = followed._reader.read, True

        async def read(max_records: int, timeout_s: float) -> Sequence[Record]:
            if away:
                raise LogUnavailable("no broker")
            return await original(max_records, timeout_s)

        monkeypatch.setattr(followed._reader, "read", read)
        await eventually(lambda: followed.problem != "")
        rm.cluster.node("n1", vcore=1)
        await bench.write(rm)
        # Meanwhile the view shows the known state, and reports a problem.
        assert (await client.get("/ws/v1/partition/default/nodes")).json() == []
        assert (await client.get("/health")).status_code == 503
        health = (await client.get("/ws/v1/scheduler/healthcheck")).json()
        assert (health["Healthy"], health["HealthChecks"][0]["Succeeded"]) == (False, False)
        assert "the log does not answer" in health["HealthChecks"][0]["DiagnosisMessage"]
        away = False
        await eventually(lambda: followed.problem == "")
        await eventually(view.healthy)
        await eventually(lambda: _nodes(client, 1))


async def test_a_damaged_part_leaves_the_state_before_it_and_is_a_problem_but_no_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=1)
    await bench.write(rm)
    async with bench.view(poll_s=0.01, **QUICK) as view, client_of(view) as client:
        followed, tries = view._followers[rm.partition], 0
        assert followed._reader is not None

        async def read(max_records: int, timeout_s: float) -> Sequence[Record]:
            nonlocal tries
            tries += 1
            raise LogDamaged("si.state", 0, 5, 9, "bits flipped", "repair it")

        monkeypatch.setattr(followed._reader, "read", read)
        with capture_logs() as lines:
            await eventually(lambda: tries >= 3)
        assert [line["event"] for line in lines] == ["view.not_following"], "one line, however often it is tried"
        assert len((await client.get("/ws/v1/partition/default/nodes")).json()) == 1
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()["healthy"]) == (200, False)
        (problem,) = answer.json()["problems"]
        assert "si.state[0] from 5 to 9: bits flipped; repair it; the state before it is shown" in problem
        health = (await client.get("/ws/v1/scheduler/healthcheck")).json()
        assert (health["Healthy"], health["HealthChecks"][0]["Succeeded"]) == (False, False)


async def test_a_record_that_cannot_be_read_leaves_the_old_state_until_it_is_gone(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=1)
    await bench.write(rm)
    async with bench.view(poll_s=0.01, **QUICK) as view, client_of(view) as client:
        await bench.commit(rm.partition, [rm.record("node", "default", "bad", value=b"\xff\xff\xff")])
        followed = view._followers[rm.partition]
        await eventually(lambda: "cannot be folded" in followed.problem)
        assert len((await client.get("/ws/v1/partition/default/nodes")).json()) == 1
        assert not await view.healthy()
        await bench.commit(rm.partition, [rm.record("node", "default", "bad", value=None)])
        rm.cluster.node("n2", vcore=1)
        await bench.write(rm)
        await eventually(view.healthy)
        await eventually(lambda: _nodes(client, 2))


async def test_a_gap_in_the_log_leads_to_a_new_fold(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=1)
    await bench.write(rm)
    async with bench.view(poll_s=0.01, **QUICK) as view:
        followed = view._followers[rm.partition]
        assert followed._reader is not None
        before = view.states()["rm1"]
        original, failures = followed._reader.read, 1

        async def read(max_records: int, timeout_s: float) -> Sequence[Record]:
            nonlocal failures
            if failures:
                failures -= 1
                raise OffsetOutOfRange("si.state.v1", 0, 1, 2, 3)
            return await original(max_records, timeout_s)

        monkeypatch.setattr(followed._reader, "read", read)
        await eventually(lambda: view.states()["rm1"] is not before)
        assert list(view.states()["rm1"].core.partitions["default"].nodes) == ["n1"]
        await eventually(view.healthy)


async def test_a_state_that_cannot_be_read_at_the_start_ends_the_start(bench: Bench) -> None:
    rm = bench.rm()
    rm.info.config = "partitions: nonsense"
    await bench.write(rm)
    with pytest.raises(Exception, match="not valid"):
        async with bench.view():
            pass


async def test_wait_tells_what_killed_it(bench: Bench) -> None:
    async with bench.view() as view:
        waiting = asyncio.create_task(view.wait())
        await bench.log.close()
        with pytest.raises(Exception, match="closed"):
            await asyncio.wait_for(waiting, 60)
