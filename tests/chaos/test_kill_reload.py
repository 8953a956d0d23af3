"""`kill -9` around a new configuration: an answered one is in force afterwards, and never half of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from chaos.harness import (
    Deployment,
    assert_counted_through,
    embedded,
    event_ids,
    on_kafka,
    opened_log,
    records,
    response_sequences,
)
from muster_bus.topics import state_key
from muster_client import Callbacks, RmClient, application, ask, node
from muster_client.admin import AdminClient, ConfigurationAnswer
from muster_client.errors import AdminFailed
from muster_client.settings import ClientSettings
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2
from muster_proto.muster.v1 import audit_pb2
from waiting import eventually

RM_ID = "reloaded"
PATIENCE_S = 180.0  # a restart is a part of some waits
ROUNDS = 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def queues(most: int, *leaves: str) -> str:
    """root.work has ``most`` vcores; beside it as many leaves as wanted, so that a text has many parts to apply."""
    others = "".join(f"          - {{name: {leaf}}}\n" for leaf in leaves)
    return (
        "partitions:\n  - name: default\n    queues:\n      - name: root\n        submitacl: '*'\n        queues:\n"
        f"          - name: work\n            resources:\n              max: {{vcore: {most}}}\n{others}"
    )


async def update(deployment: Deployment, config: str, patience_s: float = PATIENCE_S) -> ConfigurationAnswer:
    """Updates the configuration as an operator does: repeats the call until it is answered."""
    async with asyncio.timeout(patience_s):
        while True:
            async with AdminClient(deployment.gateway) as admin:
                try:
                    return await admin.update_configuration(RM_ID, config)
                except AdminFailed:
                    await asyncio.sleep(0.1)


async def recorded_config(deployment: Deployment) -> str:
    """The configuration of the RM's newest record on the log."""
    key = state_key(RM_ID, "reg", "-")
    async with opened_log(deployment.log_settings) as (log, topics):
        found = [record for record in await records(log, topics.state, topics.partition_of(RM_ID)) if record.key == key]
        assert_counted_through(await event_ids(log, topics, RM_ID), 0, "event ids")
        assert_counted_through(await response_sequences(log, topics, RM_ID), 1, "response numbers")
    assert found[-1].value is not None
    return state_pb2.RegistrationObject.FromString(found[-1].value).config


async def assert_audited_once(deployment: Deployment) -> None:
    """Each registration and each configuration on the log has one audit entry, with the identity of its caller."""
    async with opened_log(deployment.log_settings) as (log, topics):
        partition = topics.partition_of(RM_ID)
        asked = []
        for record in await records(log, topics.requests, partition):
            request = envelope_pb2.RequestEnvelope.FromString(record.value or b"")
            if request.rm_id == RM_ID and request.WhichOneof("body") in ("register", "configuration"):
                asked.append((record.offset, request.request_id))
        found = [
            audit_pb2.AuditEntry.FromString(record.value or b"")
            for record in await records(log, topics.audit, partition)
        ]
    carried = [entry for entry in found if entry.rm_id == RM_ID and entry.action in ("register", "configure")]
    carried = [entry for entry in carried if entry.request_offset >= 0]
    assert [(entry.request_offset, entry.request_id) for entry in carried] == asked
    assert len({entry.id for entry in found}) == len(found)
    assert {(entry.identity, entry.peer, entry.result) for entry in carried} == {
        ("loopback", "127.0.0.1", audit_pb2.AuditEntry.ACCEPTED)
    }
    assert len(asked) > 2 * ROUNDS


async def reload_and_kill(deployment: Deployment, name: str) -> None:
    allocated: list[str] = []
    accepted: list[str] = []

    def on_application(new: object, _rejected: object, _updated: object) -> None:
        accepted.extend(item.applicationID for item in new)  # type: ignore[attr-defined]

    callbacks = Callbacks(
        on_allocated=lambda new: allocated.extend(item.allocationKey for item in new), on_application=on_application
    )

    async def until(condition: Callable[[], object], what: str) -> None:
        await eventually(condition, f"{what}; allocated {sorted(allocated)}", PATIENCE_S)

    settings = ClientSettings(backoff_seed=5)
    async with RmClient(deployment.gateway, RM_ID, config=queues(1), callbacks=callbacks, settings=settings) as rm:
        await rm.register()
        await rm.send_nodes([node("n1", {"vcore": 1_000_000})])
        await rm.send_applications([application("app", "root.work")])
        await until(lambda: accepted, "the application is accepted")
        # One more fits with each round; the asks of later rounds wait.
        await rm.send_asks([ask(f"k{number}", "app", {"vcore": 1_000}) for number in range(ROUNDS + 1)])
        await until(lambda: len(allocated) == 1, "one fits")
        for number in range(1, ROUNDS + 1):
            config = queues(number + 1, *(f"leaf{number}x{leaf}" for leaf in range(50)))
            # 1. an answer, and at once the kill
            answer = await update(deployment, config)
            await deployment.kill(name)
            assert answer.accepted
            await deployment.restart(name)
            # 2. it is in force: one more fits, and nothing of it is left to apply
            await until(lambda wanted=number + 1: len(allocated) == wanted, "the new max is in force")
            assert await update(deployment, config) == ConfigurationAnswer(True, (), ())
        # 3. a kill while nobody has answered yet: all of it or nothing, and asked again it is in force
        config = queues(ROUNDS + 2, *(f"last{leaf}" for leaf in range(50)))
        asked = asyncio.create_task(update(deployment, config))
        await asyncio.sleep(0.002)
        await deployment.kill(name)
        await deployment.restart(name)
        answer = await asked
        assert answer.accepted
        whole = {0, 1 + 100}  # in force already, or the max, 50 queues that came and 50 that went
        assert len(answer.changes) in whole, answer.changes[:5]
        await rm.send_asks([ask("last", "app", {"vcore": 1_000})])
        await until(lambda: "last" in allocated, "the last one is in force")
    await deployment.stop()
    assert await recorded_config(deployment) == config
    await assert_audited_once(deployment)
    assert sorted(allocated) == ["k0", "k1", "k2", "k3", "last"], "each once"


async def run(deployment: Deployment, name: str) -> None:
    async with deployment.running():
        await reload_and_kill(deployment, name)


async def test_muster_up_killed_behind_a_reload(tmp_path: Path) -> None:
    await run(embedded(tmp_path), "up")


@pytest.mark.kafka
@pytest.mark.redis
async def test_a_scheduler_killed_behind_a_reload_on_kafka(
    tmp_path: Path, kafka_bootstrap: str, redis_url: str
) -> None:
    await run(on_kafka(tmp_path, kafka_bootstrap, redis_url), "scheduler")
