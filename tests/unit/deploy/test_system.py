"""deploy/system: the unit, the sample of settings, the manual page and the completions are valid and of this code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from importlib.metadata import version
from pathlib import Path

import pytest
from muster_cli.completion import commands
from muster_cli.main import app, run
from muster_cli.manual import page
from muster_cli.settings import load

ROOT = Path(__file__).parents[3]
SYSTEM = ROOT / "deploy/system"
COMPLETIONS = SYSTEM / "completions"
# An example, not the default.
EXAMPLES = {
    "gateway.policy_file",
    "gateway.tls.certificate",
    "gateway.tls.key",
    "gateway.tokens",
    "process.live_address",
    "publisher.parquet_dir",
    "publisher.postgres_dsn",
    "publisher.postgres_password_file",
    "scheduler.default_queue_config",
}


def unit() -> RawConfigParser:
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(SYSTEM / "muster.service")
    return parser


def test_the_manual_page_follows_from_the_code() -> None:
    assert (SYSTEM / "muster.1").read_text() == page(app, version("muster")), "run make command-files"


def test_the_unit_starts_muster_with_flags_that_it_has() -> None:
    command = unit()["Service"]["ExecStart"].split()
    assert command[0].endswith("/bin/muster")
    function, bound, *_ = app.parse_args(command[1:], exit_on_error=False)
    assert function.__name__ == "up"
    assert bound.arguments["data_dir"] == Path("/var/lib/muster")


def test_the_unit_names_its_own_state_directory() -> None:
    service = unit()["Service"]
    assert f"/var/lib/{service['StateDirectory']} " in service["ExecStart"]
    assert service["Type"] == "notify"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    here = Path(sys.executable).with_name("muster")
    text = (SYSTEM / "muster.service").read_text().replace("/opt/muster/bin/muster", str(here))
    (tmp_path / "muster.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", tmp_path / "muster.service"]
    done = subprocess.run(command, capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "muster.service" in line]
    assert (done.returncode, ours) == (0, [])


def test_the_sample_changes_no_setting() -> None:
    assert load(SYSTEM / "muster.toml", [], environment={}).origins == {}


def test_each_setting_of_the_sample_is_one(tmp_path: Path) -> None:
    """A line with one # is a setting: with its default, but for examples."""
    file = tmp_path / "muster.toml"
    file.write_text(re.sub(r"^#(?=[a-z\[])", "", (SYSTEM / "muster.toml").read_text(), flags=re.MULTILINE))
    taken, usual = load(file, [], environment={}), load(None, [], environment={})
    assert len(taken.origins) > 20
    for path in taken.origins:
        name, theirs, ours = ".".join(path), taken.values, usual.values
        for part in path:
            if isinstance(theirs, dict):
                break
            theirs, ours = getattr(theirs, part), getattr(ours, part)
        assert (theirs == ours) != any(name.startswith(example) for example in EXAMPLES), name


def test_the_manual_page_has_every_command() -> None:
    text = (SYSTEM / "muster.1").read_text()
    missing = [
        " ".join(path)
        for path, command in commands(app)
        if command.default_command is not None
        and f"\n.SS muster {' '.join(path)}".replace("-", r"\-") not in text
    ]  # fmt: skip
    assert missing == []
    assert "Show no" not in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_the_manual_page_is_roff_without_a_warning() -> None:
    command = ["groff", "-man", "-Tutf8", "-ww", "-rCHECKSTYLE=3", SYSTEM / "muster.1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "EXIT STATUS" in re.sub(r".\x08|\x1b\[\d*m", "", done.stdout)


# (A shell that is not installed cannot read its script: bash is everywhere, the others where people use them.)
SHELLS = [("bash", "muster.bash"), ("zsh", "_muster"), ("fish", "muster.fish")]


@pytest.mark.parametrize(("shell", "file"), SHELLS)
def test_each_shell_gets_its_completion(shell: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert capsys.readouterr().out == (COMPLETIONS / file).read_text()


@pytest.mark.parametrize(("shell", "file"), [each for each in SHELLS if shutil.which(each[0])])
def test_each_completion_is_a_script_of_its_shell(shell: str, file: str) -> None:
    assert subprocess.run([shell, "-n", COMPLETIONS / file], capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("muster g", {"gateway", "get"}),
        ("muster get no", {"nodes"}),
        ("muster get nodes --w", {"--watch", "--where"}),
        ("muster get nodes -o ", {"table", "wide", "name", "json", "yaml"}),
        ("muster explain ask ask-1 ask --k", {"--key"}),
        ("muster admin dr", {"drain"}),
        ("muster history nodes --rm x --r", {"--rm"}),
        ("muster completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(line: str, offered: set[str]) -> None:
    program = f"""
source {COMPLETIONS}/muster.bash
words=({line}); [[ "{line}" == *" " ]] && words+=("")
COMP_WORDS=("${{words[@]}}"); COMP_CWORD=$((${{#words[@]}} - 1)); COMPREPLY=()
_muster; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert (set(done.stdout.split()), done.stderr) == (offered, "")
