"""A gang over `kill -9` of a `muster up`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chaos.harness import embedded
from e2e.gang_rig import Rm, timeless
from unordered import unordered
from up import FRESH
from waiting import eventually

QUEUES = """
partitions:
  - name: default
    preemption: {enabled: true}
    placementrules: [{name: provided, create: true}]
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: free}
          - {name: stateaware, properties: {application.sort.policy: stateaware}}
          - {name: fair, properties: {application.sort.policy: fair}}
          - {name: loose, properties: {gang.start: incremental}}
          - {name: limited, resources: {max: {vcore: 4}}}
          - {name: parent, resources: {max: {vcore: 5}}, queues: [{name: leaf}]}
          - {name: users, limits: [{users: [ann], maxresources: {vcore: 3}}]}
          - {name: dynamic, parent: true, childtemplate: {resources: {max: {vcore: 2}}}}
          - {name: one, maxapplications: 1}
          - {name: poor, resources: {guaranteed: {vcore: 2}}, properties: {preemption.delay: 1s}}
          - {name: whole, properties: {gang.preemption: whole}}
"""


both = pytest.mark.parametrize("previous", [False, True], ids=["current words", "previous words"])


async def formed(rm: Rm, app: str, queue: str, count: int, **more: Any) -> list[str]:
    """Forms a gang of that many placeholders of one vcore each."""
    assert (await rm.application(app, queue, count * 1_000, **more)).how == "accepted"
    names = await rm.placeholders(app, count, 1_000)
    await eventually(lambda: set(names) <= set(rm.runs), f"{names} run")
    return names


@both
async def test_003_recovery_a_replacement_outlives_kill_9_of_the_scheduler(tmp_path: Path, *, previous: bool) -> None:
    deployment = embedded(tmp_path, FRESH)
    await deployment.start()
    try:
        async with Rm(deployment.gateway, deployment.http, "rm", QUEUES, previous=previous) as rm:
            await rm.nodes(n1=3_000)
            names = await formed(rm, "x", "root.free", 3)
            first = await rm.real("x", "w0", 1_000)
            await rm.swaps(names[0], first)
            second = await rm.real("x", "w1", 1_000)
            await rm.hears("released", names[1], "PLACEHOLDER_REPLACED")
            before = await rm.explains("x", lambda said: len(said["replacements"]) == 2)
            shown = await rm.app("x")
            await deployment.kill("up")
            await deployment.restart("up")
            await rm.explains("x", lambda said: timeless(said) == timeless(before))
            await rm.app("x", lambda said: unordered(said) == unordered(shown))
            await rm.confirm(names[1])
            await rm.hears("new", second)
            await rm.runs_these(first, second, names[2])
            third = await rm.real("x", "w2", 1_000)
            await rm.hears("released", names[2], "PLACEHOLDER_REPLACED")
            await rm.confirm(names[2])
            await rm.runs_these(first, second, third)
            app = await rm.app("x", lambda said: said["placeholderData"][0].get("replaced") == 3)
            assert (app["usedResource"], app["applicationState"]) == ({"vcore": 3_000}, "Running")
            assert len([told for told in rm.heard if told[:2] == ("new", second)]) == 1, "nothing came twice"
    finally:
        await deployment.stop()
