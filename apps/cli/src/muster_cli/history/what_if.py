"""``muster what-if``: the history as a workload, played under several configurations."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from muster_whatif import workload_source
from muster_whatif.workloads import workload_file

from muster_cli import simulate
from muster_cli.config_check import refuse_if_wrong
from muster_cli.errors import UsageError
from muster_cli.history.duckdb_store import open_history
from muster_cli.history.source import HistoryLocation
from muster_cli.history.workload import read


def what_if(
    source: HistoryLocation,
    rm: str,
    as_it_was: Path | None,
    configs: Sequence[Path],
    changes: Sequence[str],
    *,
    tick_s: float,
    save: Path | None,
    json_file: Path | None,
    html_file: Path | None,
) -> int:
    """Plays the history. Prints the comparison. Raises CommandError."""
    if as_it_was is None and not configs:
        raise UsageError("--as-it-was or --config: expected at least one queue configuration to play")
    if save is not None and not save.name.endswith(workload_source.SAVED):
        raise UsageError(f"--save {save}: expected a name that ends with {workload_source.SAVED}")
    files = [*([as_it_was] if as_it_was is not None else []), *configs]
    for file in files:
        refuse_if_wrong(file)
    with open_history(source, rm) as history:
        recorded = read(history)
    with tempfile.TemporaryDirectory() as folder:
        file = save or Path(folder) / f"history{workload_source.SAVED}"
        workload_file.write(recorded.workload, file)
        return simulate.simulate(
            workload_source.WorkloadSource(str(file)),
            files,
            changes,
            seeds=1,
            tick_s=tick_s,
            until_s=recorded.until_s,
            processes=0,
            keep=None,
            json_file=json_file,
            html_file=html_file,
            started_s=recorded.started_s if as_it_was is not None else {},
        )
