"""Plays one workload under several scenarios and seeds, on all cores. Finished plays are kept, and not played again."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path

import msgspec

from muster_whatif.scenario import Scenario
from muster_whatif.simulation import play
from muster_whatif.stats import SimulationStats, figures
from muster_whatif.workload_source import WorkloadSource

_PROGRESS_S = 0.2
_FORMAT = "3"  # of what is kept, and of what a trace is read as


@dataclass(frozen=True, slots=True)
class ExperimentPoint:
    """One play of the matrix."""

    source: WorkloadSource
    scenario: Scenario
    tick_s: float = 0.0
    until_s: float | None = None

    def key(self) -> str:
        """Returns the name under which the result is kept: another one for anything that may change it."""
        path = Path(self.source.text)
        stamp = ""
        if not self.source.is_generated and path.exists():
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            stamp = ";".join(f"{file.name}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files)
        return hashlib.sha256(repr((_FORMAT, self, stamp)).encode()).hexdigest()[:24]


def run(
    points: Sequence[ExperimentPoint],
    *,
    processes: int = 0,
    keep: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> list[SimulationStats]:
    """Plays all points. Returns their figures in order.

    :param processes: 0: one for each core.
    :param keep: folder for the results of finished plays: a run that was interrupted goes on there.
    :param progress: called now and then with the number of tasks that have ended, over all plays.

    Raises WhatIfError.
    """
    results: dict[int, SimulationStats] = {}
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for index, point in enumerate(points):
            file = keep / f"{point.key()}.json"
            if file.exists():
                results[index] = msgspec.json.decode(file.read_bytes(), type=SimulationStats)
    missing = [index for index in range(len(points)) if index not in results]
    count = min(processes or os.cpu_count() or 1, len(missing))
    if count <= 1:
        for index in missing:
            results[index] = _kept(points[index], keep, _played(points[index], progress))
        return [results[index] for index in range(len(points))]
    context = multiprocessing.get_context("spawn")
    shared = context.Array("q", len(points))
    with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(shared,)) as pool:
        running = {pool.submit(_in_a_process, index, points[index]): index for index in missing}
        try:
            while running:
                done, _ = wait(running, timeout=_PROGRESS_S, return_when=FIRST_COMPLETED)
                progress(sum(shared[:]))
                for future in done:
                    index = running.pop(future)
                    results[index] = _kept(points[index], keep, future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[index] for index in range(len(points))]


def _played(point: ExperimentPoint, progress: Callable[[int], None]) -> SimulationStats:
    workload = point.source.read()
    return figures(play(workload, point.scenario, until_s=point.until_s, tick_s=point.tick_s, progress=progress))


def _kept(point: ExperimentPoint, keep: Path | None, result: SimulationStats) -> SimulationStats:
    if keep is not None:
        file = keep / f"{point.key()}.json"
        part = file.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(result))
        part.replace(file)
    return result


# ---- in a process of the pool ----------------------------------------------------------------------------------------

_shared: list[SynchronizedArray[int]] = []


def _begin(shared: SynchronizedArray[int]) -> None:
    _shared[:] = [shared]


def _in_a_process(index: int, point: ExperimentPoint) -> SimulationStats:
    def progress(over: int) -> None:
        _shared[0][index] = over

    return _played(point, progress)
