"""Contexts: what a file may say, which of variable, context and flag wins, and the commands."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from muster_cli.contexts import Contexts, apply, file_of, load, store
from muster_cli.errors import UsageError
from muster_cli.main import run


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "of me" / "contexts.toml"
    monkeypatch.setenv("MUSTER_CONTEXTS", str(path))
    monkeypatch.delenv("MUSTER_CONTEXT", raising=False)
    return path


def test_the_file_is_the_users_own() -> None:
    assert file_of({"HOME": "/home/ann"}) == Path("/home/ann/.config/muster/contexts.toml")
    assert file_of({"HOME": "/home/ann", "XDG_CONFIG_HOME": "/conf"}) == Path("/conf/muster/contexts.toml")
    assert file_of({"MUSTER_CONTEXTS": "/else/where"}) == Path("/else/where")


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "contexts.toml"
    kept = Contexts("a b", {"a b": {"gateway": "h:1", "rm": 'say "hi" \\ \x7f\n'}, "ü": {"tls": "true"}})
    store(path, kept)
    assert load(path) == kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load(tmp_path / "none.toml") == Contexts()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("current = 1", 'expected current = "NAME"'),
        ("[context.a]\ngateway = 1", "context.a.gateway: expected a text"),
        ("[context.a]\ntoken = 'x'", "context.a.token: expected a text, of one of gateway, http, rm, token_file"),
        ("[context]\na = 1", "context.a: expected a table"),
        ("x", "cannot be read"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "contexts.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"{path}: .*{said}"):
        load(path)


def test_a_variable_wins_over_a_context(file: Path) -> None:
    file.parent.mkdir()
    store(file, Contexts("one", {"one": {"gateway": "one:1", "http": "one:2"}, "two": {"gateway": "two:1"}}))
    environment = {"MUSTER_CONTEXTS": str(file), "MUSTER_GATEWAY": "mine:1"}
    apply(environment)
    assert (environment["MUSTER_GATEWAY"], environment["MUSTER_HTTP"]) == ("mine:1", "one:2")
    environment = {"MUSTER_CONTEXTS": str(file), "MUSTER_CONTEXT": "two"}
    apply(environment)
    assert environment["MUSTER_GATEWAY"] == "two:1"
    assert "MUSTER_HTTP" not in environment
    with pytest.raises(UsageError, match="MUSTER_CONTEXT: unknown context 'three'; known: one, two"):
        apply({"MUSTER_CONTEXTS": str(file), "MUSTER_CONTEXT": "three"})


def test_without_a_file_nothing_is_set(tmp_path: Path) -> None:
    environment = {"MUSTER_CONTEXTS": str(tmp_path / "none")}
    apply(environment)
    assert list(environment) == ["MUSTER_CONTEXTS"]


def test_the_commands(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> tuple[int, Any, str]:
        code = run(["context", *arguments])
        printed = capsys.readouterr()
        return code, [line.split() for line in printed.out.splitlines()], printed.err

    assert command("list")[2].startswith("no contexts: muster context set NAME")
    assert command("set", "home", "--gateway", "127.0.0.1:9090")[1] == [["home", "is", "stored", "and", "in", "force"]]
    assert command("set", "work", "--gateway", "work:9090", "--rm", "rm-1")[1] == [["work", "is", "stored"]]
    assert command("use", "work")[0] == 0
    assert command("set", "work", "--rm", "")[0] == 0
    assert command("list")[1][1:] == [["home", "127.0.0.1:9090"], ["*", "work", "work:9090"]]
    code, _, complaint = command("use", "else")
    assert code == 2
    assert "unknown context 'else'; known: home, work (muster context set else" in complaint
    assert command("delete", "work")[0] == 0
    assert load(file) == Contexts("", {"home": {"gateway": "127.0.0.1:9090"}})


def test_a_command_uses_the_context_in_force(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MUSTER_GATEWAY", "MUSTER_HTTP"):
        monkeypatch.setenv(name, "")  # restored at the end
        monkeypatch.delenv(name)
    assert run(["context", "set", "away", "--gateway", "127.0.0.1:1", "--http", "127.0.0.1:2"]) == 0
    assert run(["admin", "rms"]) == 1
    assert "nothing answers at 127.0.0.1:1:" in capsys.readouterr().err
    assert run(["get", "nodes"]) == 1
    assert "nothing answers at http://127.0.0.1:2:" in capsys.readouterr().err
