"""The example of docs/callbacks.md, as a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from e2e.gang_rig import PATIENCE_S, Muster

QUEUES = """
partitions:
  - name: default
    preemption: {enabled: true}
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: batch}
          - {name: poor, resources: {guaranteed: {vcore: 2}}, properties: {preemption.delay: 1s}}
"""
DOCS = Path(__file__).parents[2] / "docs" / "callbacks.md"
LABELS = {"n1": "gpu", "n2": "", "n3": "ssd", "n4": "gpu ssd", "n5": "", "n6": "ssd"}


async def test_the_documented_example_runs(muster: Muster) -> None:
    code = DOCS.read_text().split("```python\n")[1].split("```")[0].replace("127.0.0.1:9090", muster.gateway)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    async with asyncio.timeout(PATIENCE_S):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert "{'pod-1': 'n2'}" in said.decode()
