"""The whole of Muster in virtual time: minutes of some seeds, and that a seed is repeated to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from chaos.storm.plan import Fault

from virtual.faults import CALM
from virtual.play import Played, play, stormy
from virtual.rare import missing

TESTS = Path(__file__).parents[1]
SEEDS = (1, 2, 3)
SECONDS = 150.0
# Seeds that found something, and how many seconds they were played. 18: an allocation that the RM heard of later than
# the position that it read with. 27: a stream that was lost between the records of one message with many reports.
FINDERS = ((18, 360.0), (27, 360.0))


def told(played: Played) -> str:
    return "\n".join([f"SEED={played.plan.seed} HOURS={played.plan.seconds / 3600:g}", *played.story()])


@pytest.mark.parametrize(("seed", "seconds"), [*((seed, SECONDS) for seed in SEEDS), *FINDERS])
def test_no_law_is_broken_under_all_faults(seed: int, seconds: float) -> None:
    played = play(stormy(seed, seconds))
    assert not played.findings, told(played)
    assert played.counts["deaths"] >= 1
    assert played.counts["streams broken"] > 10
    assert played.asks > 300


def test_without_faults_nothing_is_lost_and_nothing_ends() -> None:
    plan = stormy(7, 60.0).without_faults()
    played = play(plan)
    assert plan.rates == CALM
    assert not played.findings, told(played)
    assert not played.counts["streams lost"]
    assert not any(name.startswith("ended") for name in played.counts)


def test_a_seed_is_the_same_to_the_byte_in_a_fresh_process_under_another_hash_seed() -> None:
    here = play(stormy(11, 60.0))
    again = play(stormy(11, 60.0))
    assert (again.digest, again.lines) == (here.digest, here.lines)
    told_by = set()
    for hash_seed in ("1", "2"):
        code = "from virtual.play import play, stormy; print(play(stormy(11, 60.0)).digest)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        told_by.add(run.stdout.strip())
    assert told_by == {here.digest}
    assert play(stormy(12, 60.0)).digest != here.digest


def test_nothing_depends_on_how_fast_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> NoReturn:
        raise AssertionError("a watchdog asked the system")

    monkeypatch.setattr("muster_runtime.processor_time.usage_of", ask)
    played = play(stormy(4, 120.0))
    assert not played.findings, told(played)


def test_a_client_that_names_no_position_misses_nothing_when_its_gateway_dies() -> None:
    """What was written to it and did not arrive comes again from the other gateway."""
    for second in range(1, 5):
        deaf, killed = Fault(20.0, "deaf", "rm 0", 6.0, 0.0), Fault(20.0 + second, "kill", "gateway-1", 5.0)
        played = play(replace(stormy(7, 45.0).without_faults(), faults=(deaf, killed)))
        assert not played.findings, told(played)


def test_what_never_happened_is_named() -> None:
    played = play(stormy(7, 60.0).without_faults())
    never = missing(played.counts, hours=0.1)
    assert "fault kill: 0 times, expected at least 2" in never
    assert "deaths: 0, expected at least 10" in never
