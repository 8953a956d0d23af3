"""Every file of tests is one of those that a target of the Makefile plays."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
LISTS = ("PARALLEL_TESTS", "NOTICE_TESTS", "SYSTEM_TESTS", "LONG_SYSTEM_TESTS", "LONG_TESTS", "LOAD_TESTS")
# With targets of their own: compiled, dist, kubernetes.
FOLDERS = ("tests/compiled", "tests/dist", "tests/kubernetes")


def test_every_file_of_tests_is_in_one_list() -> None:
    words = " ".join(f"$({name})" for name in LISTS)
    command = ["make", "--silent", f"--eval=lists: ; @echo {words}", "lists"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert sorted(listed) == sorted(set(listed)), "a file is in two lists"
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}
    assert {name for name in listed if name.endswith(".py")} <= files
    places = tuple(f"{folder}/" for folder in (*FOLDERS, *(name for name in listed if not name.endswith(".py"))))
    assert {file for file in files - set(listed) if not file.startswith(places)} == set()
