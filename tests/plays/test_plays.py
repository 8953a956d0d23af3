"""Random plays: Muster decides as YuniKorn's core does, but for the rows of docs/differences.md."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from wanting import give_up

from bench.sockets import BUILD_TIMEOUT_S
from plays.__main__ import repeat, told
from plays.compare import TIES, stage
from plays.differences import RULES, SETTINGS
from plays.kinds import KINDS, play_of
from plays.play import Play, allocations, application, applications, ask, node, nodes, releases
from plays.systems import player

DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"
FIRST, PLAYS = 701, int(os.environ.get("MUSTER_PLAYS", "21"))

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
        for seed in range(FIRST, FIRST + PLAYS):
            play = play_of(seed)
            if play.kind != kind:
                continue
            comparison = await at.compare(play)
            if comparison.failed:
                found.append(await told(at, play, comparison, repeat(seed), shorten=True))
    assert not found, "\n\n".join(["Muster and YuniKorn differ:", *found])


async def test_a_difference_is_noticed_and_told_in_its_shortest_form(built: None, tmp_path: Path) -> None:
    """Muster is told to fill one node after the other, and YuniKorn to spread."""
    size = {"vcore": 700, "memory": 700}
    play = Play(
        "placement",
        1,
        {"name": "default", "queues": [{"name": "root", "submitacl": "*", "queues": [{"name": "a"}]}]},
        {"nodesortpolicy": {"type": "binpacking"}},
        (
            nodes(node("n1", vcore=4_000, memory=4_000), node("n2", vcore=5_000, memory=5_000)),
            applications(application("app", "root.a"), application("other", "root.a")),
            allocations(ask("other-1", "other", size)),
            releases(("other", "other-1")),
            *(allocations(ask(f"ask{number}", "app", size)) for number in range(4)),
        ),
    )
    async with stage(tmp_path) as at:
        found = await at.compare(play)
        assert [(each.only, each.item.kind) for each in found.failed] == [
            ("YuniKorn", "allocated"),
            ("Muster", "allocated"),
        ]
        text = await told(at, play, found, "make compare-plays SEED=1", shorten=True)
    lines = text.splitlines()
    assert lines[-1] == "repeat: make compare-plays SEED=1"
    assert len([line for line in lines if line.startswith(("1. ", "2. ", "3. ", "4. "))]) == 4, text
    assert not [line for line in lines if line.startswith("5. ")], text
    assert "other" not in text


def test_each_admitted_difference_is_a_documented_row() -> None:
    rows = {line.split("|")[1].strip() for line in DIFFERENCES.read_text().splitlines() if line.startswith("| ")}
    undocumented = {TIES, *(rule.row for rule in RULES), *SETTINGS.values()} - rows
    assert not undocumented


def test_a_seed_is_one_play() -> None:
    for seed in range(12):
        assert play_of(seed) == play_of(seed)
