"""Where a workload comes from: one text names it, and every process of a matrix can read it again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from muster_whatif.errors import WorkloadWrong
from muster_whatif.workload import Workload
from muster_whatif.workloads import generated, openb, saved, swf

GENERATE = "generate:"
SAVED = ".workload.json"


@dataclass(frozen=True, slots=True)
class Source:
    """A workload's source.

    :param text: a folder with nodes.csv.gz and pods.csv.gz, a file ``*.swf``, ``*.swf.gz`` or
        ``*.workload.json``, or ``generate:`` with the generator's values.
    :param seed: of the generator; None: that of ``text``.
    :param speed: so many times as dense do tasks arrive; they run as long as before.
    """

    text: str
    seed: int | None = None
    speed: float = 1.0

    @property
    def is_generated(self) -> bool:
        return self.text.startswith(GENERATE)

    def first_seed(self) -> int:
        """Returns the generator's seed. Raises WorkloadWrong."""
        return self._generator().seed

    def read(self) -> Workload:
        """Returns the workload. Raises WorkloadWrong."""
        workload = self._read()
        if self.speed == 1.0:
            return workload
        tasks = [replace(task, arrives_s=task.arrives_s / self.speed) for task in workload.tasks]
        facts = [*workload.facts, f"tasks arrive {self.speed:g} times as fast"]
        return replace(workload, tasks=tasks, facts=facts)

    def _generator(self) -> generated.Generator:
        what = generated.Generator.parse(self.text.removeprefix(GENERATE))
        return what if self.seed is None else replace(what, seed=self.seed)

    def _read(self) -> Workload:
        if self.is_generated:
            return generated.generate(self._generator())
        path = Path(self.text)
        if path.is_dir():
            return openb.read(path)
        if ".swf" in path.suffixes:
            return swf.read(path)
        if path.name.endswith(SAVED):
            return saved.read(path)
        raise WorkloadWrong(
            f"{self.text}: expected a folder with nodes.csv.gz and pods.csv.gz, a file .swf, .swf.gz or "
            f"{SAVED}, or {GENERATE}…"
        )
