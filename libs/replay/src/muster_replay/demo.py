"""`muster demo`: starts a Muster in a new directory, and plays the openb trace through it."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from muster_runtime.private_files import make_private_directory
from muster_runtime.terminal import Screen, marked

from muster_replay.errors import ReplayFailed
from muster_replay.local import LocalProcess, free_ports, muster_command
from muster_replay.replay import is_standard_output, main_replay
from muster_replay.trace import OPENB


def main_demo(
    directory: Path = OPENB,
    *,
    data_dir: Path | None = None,
    json_file: Path | None = None,
    keep: bool = False,
    timeout_s: float = 120.0,
) -> int:
    """Runs `muster demo`. Returns the exit code: the replay's, or 2 if Muster does not start.

    :param directory: of the trace.
    :param data_dir: directory of Muster's log and history; None: a new temporary directory, which stays.
    :param json_file: as :func:`~muster_replay.replay.main_replay` takes it.
    :param keep: keep Muster running until interrupted.
    """
    console = Screen(stderr=is_standard_output(json_file))
    data_dir = data_dir or Path(tempfile.mkdtemp(prefix="muster-demo-"))
    make_private_directory(data_dir)
    grpc_port, http_port = free_ports(2)
    grpc_address, http_address = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
    addresses = ("--grpc-address", grpc_address, "--http-address", http_address)
    muster = LocalProcess(muster_command("up", "--data-dir", str(data_dir), *addresses), data_dir / "muster.log")
    muster.start()
    try:
        with console.status(marked("Starting muster up in {} …", data_dir)):
            came_up_s = asyncio.run(muster.serving(grpc_address))
        console.print(f"Muster serves on {grpc_address} after {came_up_s:.1f} s, data in {data_dir}")
        code = main_replay(
            directory,
            grpc_address,
            f"http://{http_address}",
            timeout_s=timeout_s,
            json_file=json_file,
            keep=keep,
            next_places=_where_to_look(data_dir, http_address, muster.log_file, keep),
            console=console,
        )
    except ReplayFailed as error:
        console.print(marked("[bold red]demo failed:[/] {}", error))
        return 2
    finally:
        muster.stop()
    show_history(data_dir, console)
    return code


def _where_to_look(data_dir: Path, http_address: str, log_file: Path, keep: bool) -> dict[str, str]:
    """Returns the report's places. This Muster ends with the demo unless it is kept; its data stay."""
    front = f"http://{http_address if keep else '127.0.0.1:9080'}/ws/v1"
    places = {
        "REST" if keep else "REST, then": f"{front}/partition/default/queues",
        "why a task is pending": f"{front}/explain/pending?rm=openb",
        "log": str(log_file),
    }
    return places if keep else {"go on with it": f"muster up --data-dir {data_dir}", **places}


def show_history(data_dir: Path, console: Screen) -> None:
    """Prints where the history is, and how to read it."""
    files = sorted(data_dir.rglob("*.parquet"))
    if not files:
        console.print(marked("[bold red]wrong:[/] there is no history under {}", data_dir))
        return
    count = f"{len(files)} Parquet file" + ("" if len(files) == 1 else "s")
    console.print(marked("[bold]history:[/] {} ({})", data_dir, count), soft_wrap=True)
    for words, arguments in {
        "ask it": '"select * from applications"',
        "usage": "usage --queue root --plot usage.png",
    }.items():
        command = f"muster history {arguments} --data-dir {data_dir}"
        console.print(marked("[bold]{}:[/] {}", words, command), soft_wrap=True)
