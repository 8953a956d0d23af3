"""`muster get` beside a whole Muster: what it lists is what the RM has."""

from __future__ import annotations

import asyncio
import json
import subprocess

from e2e.gang_rig import Muster, Rm
from muster_client import ask
from muster_replay.local_process import muster_command

QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: a, resources: {max: {vcore: 3}}}
          - {name: b}
"""


async def get(muster: Muster, *arguments: str) -> str:
    """Runs the command in a process of its own: Muster's logs go to this one's standard output."""
    command = muster_command("get", *arguments, "--http", muster.http)
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_all_kinds_of_a_cluster(muster: Muster) -> None:
    async with Rm(muster.gateway, muster.http, "rm", QUEUES) as rm:
        await rm.nodes(n1=4_000)
        await rm.application("app", "root.a")
        await rm.client.send_asks([ask("k1", "app", {"vcore": 2_000}), ask("k2", "app", {"vcore": 2_000})])
        await rm.shows(
            "/ws/v1/explain/pending", lambda pending: [a["allocationKey"] for a in pending["pending"]] == ["k2"]
        )
        for kind, names in (("nodes", ["n1"]), ("allocations", ["app/k1"]), ("asks", ["app/k2"]), ("rms", ["rm"])):
            assert (await get(muster, kind, "-o", "name")).split() == names
        (ask_row,) = json.loads(await get(muster, "asks", "--where", "reason=QUEUE_MAX*", "-o", "json"))
        assert ask_row["sentence"]
        (queue_line,) = [line for line in (await get(muster, "queues")).splitlines() if line.startswith("root.a")]
        assert queue_line.split()[-1] == "2/3"
        rms = await get(muster, "rms", "--columns", "nodes,applications,asks,allocations,allocations-quota")
        assert rms.splitlines()[1].split() == ["1", "1", "1", "1", "2/2,000,000"]
