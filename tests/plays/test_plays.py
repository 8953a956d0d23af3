"""Random plays: Muster decides as YuniKorn's core does, but for the rows of docs/differences.md."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from perf.sockets import BUILD_TIMEOUT_S
from wanting import give_up

from plays.__main__ import told
from plays.compare import stage
from plays.differences import RULES, SETTINGS
from plays.kinds import KINDS, play_of
from plays.systems import player

DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"
PLAYS = int(os.environ.get("MUSTER_PLAYS", "50"))

pytestmark = [pytest.mark.timeout(BUILD_TIMEOUT_S + 600)]


@pytest.fixture(scope="module")
def built() -> None:
    if shutil.which("go") is None:
        give_up("there is no Go toolchain, which builds YuniKorn's core")
    player()


@pytest.mark.parametrize("kind", KINDS)
async def test_random_plays_differ_in_documented_ways_only(kind: str, built: None, tmp_path: Path) -> None:
    found = []
    async with stage(tmp_path) as at:
        for seed in range(1, PLAYS + 1):
            play = play_of(seed)
            if play.kind != kind:
                continue
            comparison = await at.compare(play)
            if comparison.failed:
                found.append(await told(at, seed, "", comparison, shorten=True))
    assert not found, "\n\n".join(["Muster and YuniKorn differ:", *found])


def test_each_admitted_difference_is_a_documented_row() -> None:
    rows = {line.split("|")[1].strip() for line in DIFFERENCES.read_text().splitlines() if line.startswith("| ")}
    assert not ({rule.row for rule in RULES} | set(SETTINGS.values())) - rows


def test_a_seed_is_one_play() -> None:
    for seed in range(12):
        assert play_of(seed) == play_of(seed)
