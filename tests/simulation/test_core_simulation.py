"""Random lives of a cluster, with seeds that reproduce them, and an auditor of its own: see README.md.

These are a slice; ``make simulate`` lives thousands. More of them: ``MUSTER_SIMULATION_SEEDS=500 pytest …``; one that
failed: ``-k 'seed-17'``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation import shrink, words
from simulation.life import Life

# Lives beyond the slice that found something once.
FOUND = (5514, 5670)
SEEDS = (*range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "100"))), *FOUND)
STEPS = 60
SHRINKING_S = 20.0


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_random_life_keeps_every_promise(seed: int) -> None:
    """Every answer, every decision, every reason, every record; restarts in the middle; folded and followed alike."""
    life = Life(seed)
    document = json.loads(json.dumps(life.run.document))
    try:
        life.live(STEPS)
    except Exception as error:
        short, found = shrink.shrunken(document, life.run.steps, error, SHRINKING_S)
        story = f"the shortest life found that fails so:\n{words.told(document, short)}\n{found}"
        pytest.fail(f"{error}\n{story}\nagain: make simulate SEED={seed} STEPS={STEPS}", pytrace=False)


def test_the_same_seed_gives_the_same_life_under_another_hash_seed() -> None:
    script = (
        "import sys; sys.path[:0] = sys.argv[1:2]\n"
        "from simulation.life import Life\n"
        "for seed in range(12):\n"
        "    life = Life(seed)\n"
        "    for _ in range(40): life.step()\n"
        "    print(seed, life.run.digest.hexdigest())\n"
    )
    tests = str(Path(__file__).parent.parent)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, tests],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (process.communicate(timeout=100)[0].splitlines() for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert len(first) == 12
    assert first == second
