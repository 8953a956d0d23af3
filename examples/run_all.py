"""Runs every resource manager of this folder, one after the other, against a Muster of its own: `make examples`.

Ends with 0 only if all of them did.
"""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from muster_replay.local_process import LocalProcess, free_ports, muster_command

HERE = Path(__file__).parent
NO_RMS = ("wire.py", "objects.py", "consume_events.py", "faust_consumer.py")
PYTHON = [
    *sorted(program for program in (HERE / "python").glob("*.py") if program.name not in NO_RMS),
    HERE / "rm_minimal.py",
    HERE / "gang.py",
]
OBJECTS = HERE / "python" / "objects.py"  # reads what all of them left behind
GO = [["-callbacks=false"], [], ["-generation", "previous"]]
TIMEOUT_S = 120


def main() -> None:
    commands = [[sys.executable, str(program)] for program in PYTHON]
    if shutil.which("go"):
        subprocess.run(["make", "--no-print-directory", "-C", str(HERE / "go-rm")], check=True)
        commands += [[str(HERE / "go-rm" / "bin" / "go-rm"), *flags, "-gateway"] for flags in GO]
    else:
        print("no Go here: examples/go-rm is left out")
    with tempfile.TemporaryDirectory() as directory:
        grpc_address, http_address = (f"127.0.0.1:{port}" for port in free_ports(2))
        addresses = ["--grpc-address", grpc_address, "--http-address", http_address]
        muster = LocalProcess(
            muster_command("up", "--data-dir", f"{directory}/data", *addresses), Path(directory, "muster.log")
        )
        muster.start()
        try:
            asyncio.run(muster.serving(grpc_address))
            commands = [[*command, grpc_address] for command in commands]
            commands.append([sys.executable, str(OBJECTS), f"{directory}/data"])
            failed = [command for command in commands if not succeeds(command)]
        finally:
            muster.stop()
    sys.exit(f"{len(failed)} of {len(commands)} failed" if failed else None)


def succeeds(command: list[str]) -> bool:
    print("\n$", *command, flush=True)
    return subprocess.run(command, timeout=TIMEOUT_S, check=False).returncode == 0


if __name__ == "__main__":
    main()
