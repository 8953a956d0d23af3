"""``scheduler.external``: tables of informers from every origin, flags, hidden secrets, errors."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from muster_cli import bootstrap
from muster_cli.errors import UsageError
from muster_cli.main import run
from muster_cli.settings import load
from muster_cli.settings_loader import SettingsError
from muster_informers.settings import ExternalSettings, InformerTable

VMS = """
[scheduler.external]
event_handler = "two-level"
[scheduler.external.informers.vms]
kind = "http"
rm = "rm-1"
partition = "Default"
url = "https://user:s3cret@host/x?token=s3cret"
headers = {Authorization = "Bearer s3cret"}
tries = [1, "s3cret", true]
handler_share = 0.5
handler_key = "s3cret"
"""


def given(tmp_path: Path, text: str, *flags: tuple[str, str, object]) -> ExternalSettings:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    return load(file, (), flags, environment={}).values.scheduler.external


def test_a_table_has_what_all_informers_have_and_the_options_of_its_kind_and_handler(tmp_path: Path) -> None:
    settings = given(tmp_path, VMS)
    table = settings.informers["vms"]
    assert (table.kind, table.rm, table.partition_name, table.required, table.when_lost) == (
        "http",
        "rm-1",
        "default",
        True,
        "drain",
    )
    assert (table.stale_after_s, table.resync_s, table.handler) == (30.0, 0.0, "")
    assert table.options() == {
        "url": "https://user:s3cret@host/x?token=s3cret",
        "headers": {"Authorization": "Bearer s3cret"},
        "tries": [1, "s3cret", True],
    }
    assert table.handler_options() == {"share": 0.5, "key": "s3cret"}
    assert settings.event_handler == "two-level"


def test_no_text_of_an_option_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = given(tmp_path, VMS)
    assert "s3cret" not in f"{settings!r} {settings} {settings.model_dump()}"
    for arguments in ((), ("--json",), ("--changed",)):
        assert run(["config", "show", "--settings", str(tmp_path / "settings.toml"), *arguments]) == 0
        shown = capsys.readouterr().out
        assert "s3cret" not in shown
        assert "https://user:***@host/x?***" in "".join(shown.split())


def test_another_process_can_be_given_the_same_settings(tmp_path: Path) -> None:
    settings = given(
        tmp_path,
        VMS.replace('event_handler = "two-level"', 'config_path = "/x.toml"\ninstances = ["a"]\ninstance = "a"'),
    )
    # (in the form in which it is passed on)
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(settings.in_clear()))
    assert ExternalSettings.model_validate(told) == settings
    assert "s3cret" in str(told)
    assert ExternalSettings.model_validate(ExternalSettings().in_clear()) == ExternalSettings()


def test_paths_in_tables_are_beside_the_file_that_has_them(tmp_path: Path) -> None:
    assert given(tmp_path, VMS).base == tmp_path
    assert given(tmp_path, VMS.replace('event_handler = "two-level"', 'base = "/elsewhere"')).base == Path("/elsewhere")
    environment = {"MUSTER_SCHEDULER__EXTERNAL__INFORMERS": '{"a": {"kind": "empty", "rm": "r"}}'}
    external = load(None, (), environment=environment).values.scheduler.external
    assert (list(external.informers), external.base) == (["a"], Path())


@pytest.mark.parametrize("command", ["up", "scheduler"])
def test_flags_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(VMS)
    found: list[ExternalSettings] = []

    def serve(settings: object, *_: object) -> int:
        found.append(settings.scheduler.external)  # type: ignore[attr-defined]
        return 0

    monkeypatch.setattr(bootstrap, "_serve", serve)
    anywhere = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    beside = {
        "up": ["--data-dir", str(tmp_path / "data"), *anywhere],
        "scheduler": ["--set", "log.backend=kafka", *anywhere[2:]],
    }
    flags = ["--event-handler", "mine", "--config-path", "handler.yaml"]
    assert run([command, *beside[command], "--settings", str(file), *flags]) == 0
    assert (found[0].event_handler, found[0].config_path) == ("mine", Path("handler.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('informers.a = {rm = "r"}', "informers.a.kind: Field required"),
        ('informers.a = {kind = "empty"}', "informers.a.rm: Field required"),
        ('informers.a = {kind = "empty", rm = "r", when_lost = "burn"}', "Input should be 'drain' or 'keep'"),
        ('informers.a = {kind = "empty", rm = "a\\nb"}', "has U+000A, expected no character that breaks a line"),
        ('informers."a\\nb" = {kind = "empty", rm = "r"}', "name of an informer: 'a\\nb' has U+000A"),
        ('informers.a = {kind = "empty", rm = "r", stale_after_s = -1}', "greater than or equal to 0"),
        ("sync_timeout_s = 0", "sync_timeout_s: Input should be greater than 0"),
        ('instances = ["a", "b"]', "instance: '', expected one of instances: a, b"),
        ('instances = ["a", "a"]\ninstance = "a"', "instances: a, a, expected each name once"),
        ("informer = 1", "unknown setting 'scheduler.external.informer'; did you mean"),
    ],
)
def test_a_mistake_is_reported(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        given(tmp_path, f"[scheduler.external]\n{text}\n")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--event-handler", "ghost"],
            "muster: event handler 'ghost' is not known, expected one of: default, two-level",
        ),
        (["--config-path", "/nowhere/at/all"], "muster: config_path: '/nowhere/at/all': No such file or directory"),
        (
            ["--set", 'scheduler.external.informers={"a": {"kind": "ghost", "rm": "r"}}'],
            "muster: scheduler.external.informers.a: informer 'ghost' is not known, expected one of: empty, file",
        ),
        (
            ["--set", 'scheduler.external.informers={"a": {"kind": "empty", "rm": "r", "pasword": "s3cret"}}'],
            "muster: scheduler.external.informers.a.pasword: ",
        ),
    ],
)
def test_an_informer_that_cannot_be_made_is_reported_before_the_log_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    data = tmp_path / "data"
    addresses = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    assert run(["up", "--data-dir", str(data), *addresses, *flags]) == UsageError.exit_code
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert "s3cret" not in error
    assert list(data.iterdir()) == []


def test_the_model_takes_a_table_without_options() -> None:
    table = InformerTable.model_validate({"kind": "empty", "rm": "r"})
    assert (table.options(), table.handler_options()) == ({}, {})
