"""Settings from default, file, environment and flag."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from muster_cli.settings_loader import (
    MASK,
    Origin,
    ResolvedSettings,
    SettingsError,
    compose,
    format_value,
    parse_assignment,
)
from pydantic import BaseModel, ConfigDict, Field, SecretStr


class Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    max_items: int = Field(10, ge=1, description="Most items.")


class Door(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    address: str = Field("127.0.0.1:1", description="Where.")
    hosts: tuple[str, ...] = Field((), description="Who.")
    certificate: Path | None = Field(None, description="Which.")
    password: SecretStr = Field(SecretStr(""), description="How.")
    mode: Literal["open", "shut"] = "open"
    limits: Limits = Field(default_factory=Limits)


class Everything(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    door: Door = Field(default_factory=Door)
    window: Limits = Field(default_factory=Limits)


def origin(composed: ResolvedSettings[Everything], name: str) -> tuple[Origin, str]:
    return next((one.origin, one.place) for one in composed.effective() if one.name == name)


def test_without_anything_the_defaults_hold() -> None:
    composed = compose(Everything)
    assert composed.values == Everything()
    assert {one.origin for one in composed.effective()} == {Origin.DEFAULT}


def test_each_origin_overrides_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "muster.toml"
    file.write_text(
        '[door]\naddress = "file:1"\nhosts = ["a", "b"]\n[door.limits]\nmax_items = 7\n[window]\nmax_items = 8\n'
    )
    composed = compose(
        Everything,
        defaults={"door.address": "default:1", "door.mode": "shut"},
        file=file,
        environment={"MUSTER_DOOR__ADDRESS": "environment:1", "MUSTER_DOOR__LIMITS__MAX_ITEMS": "5", "PATH": "/bin"},
        flags=[("door.address", "--address", "flag:1"), parse_assignment("door.mode=open")],
    )
    assert composed.values.door.address == "flag:1"
    assert composed.values.door.hosts == ("a", "b")
    assert composed.values.door.limits.max_items == 5
    assert composed.values.window.max_items == 8
    assert origin(composed, "door.address") == (Origin.FLAG, "--address")
    assert origin(composed, "door.hosts") == (Origin.FILE, str(file))
    assert origin(composed, "door.limits.max_items") == (Origin.ENVIRONMENT, "MUSTER_DOOR__LIMITS__MAX_ITEMS")
    assert origin(composed, "door.mode") == (Origin.FLAG, "--set door.mode")
    assert origin(composed, "door.certificate") == (Origin.DEFAULT, "")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [("a,b", ("a", "b")), ("a", ("a",)), ('["a", "b,c"]', ("a", "b,c")), ("", ()), (" a , ", ("a",))],
)
def test_a_list_is_json_or_separated_by_commas(text: str, hosts: tuple[str, ...]) -> None:
    assert compose(Everything, environment={"MUSTER_DOOR__HOSTS": text}).values.door.hosts == hosts


def test_an_empty_text_unsets_what_may_be_unset() -> None:
    given = compose(Everything, environment={"MUSTER_DOOR__CERTIFICATE": "/x"}).values.door.certificate
    assert given == Path("/x")
    assert compose(Everything, environment={"MUSTER_DOOR__CERTIFICATE": ""}).values.door.certificate is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MUSTER_DOOR__ADRESS": "x"}, ["MUSTER_DOOR__ADRESS: unknown setting", "did you mean 'door.address'?"]),
        ({"MUSTER_ROOF__ADDRESS": "x"}, ["MUSTER_ROOF__ADDRESS: unknown setting"]),
        ({"MUSTER_DOOR__LIMITS__MAX_ITEMS": "many"}, ["MUSTER_DOOR__LIMITS__MAX_ITEMS: ", "integer", "not 'many'"]),
        ({"MUSTER_DOOR__LIMITS__MAX_ITEMS": "0"}, ["door.limits.max_items: ", "greater than or equal to 1"]),
        ({"MUSTER_DOOR__MODE": "ajar"}, ["door.mode: ", "'open' or 'shut'", "not 'ajar'"]),
        ({"MUSTER_DOOR__HOSTS": "[1"}, ["MUSTER_DOOR__HOSTS: door.hosts: "]),
    ],
)
def test_an_invalid_value_names_place_setting_and_expectation(environment: dict[str, str], expected: list[str]) -> None:
    with pytest.raises(SettingsError) as raised:
        compose(Everything, environment=environment)
    (problem,) = raised.value.problems
    assert all(part in problem for part in expected), problem


def test_all_problems_are_shown_at_once() -> None:
    with pytest.raises(SettingsError) as raised:
        compose(Everything, environment={"MUSTER_DOOR__MODE": "ajar", "MUSTER_WINDOW__MAX_ITEMS": "-1"})
    assert len(raised.value.problems) == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[door]\nadress = 1\n", "unknown setting 'door.adress'; did you mean 'door.address'?"),
        ("[roof]\n", "unknown setting 'roof'; sections are door, window"),
        ("door = 1\n", "unknown setting 'door'"),
        ("[door\n", "is not TOML"),
    ],
)
def test_a_file_with_a_mistake_is_named(content: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "muster.toml"
    file.write_text(content)
    with pytest.raises(SettingsError) as raised:
        compose(Everything, file=file)
    assert expected in str(raised.value)
    assert str(file) in str(raised.value)


def test_an_absent_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        compose(Everything, file=tmp_path / "absent.toml")


@pytest.mark.parametrize("text", ["address=1", "door.address", ""])
def test_a_set_flag_that_is_no_assignment(text: str) -> None:
    with pytest.raises(SettingsError, match=r"section\.field=value"):
        parse_assignment(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (SecretStr("hidden"), MASK),
        (SecretStr(""), ""),
        (SecretStr("postgresql://muster:hidden@db:5432/muster"), f"postgresql://muster:{MASK}@db:5432/muster"),
        ("redis://:hidden@cache/0", f"redis://:{MASK}@cache/0"),
        (SecretStr("redis://cache/0"), "redis://cache/0"),
        (SecretStr("redis://user@cache/0?password=hidden"), f"redis://user@cache/0?{MASK}"),
        ("postgresql://db/muster?user=u&password=hidden", f"postgresql://db/muster?{MASK}"),
        ({"a": SecretStr("hidden")}, f"{{a: {MASK}}}"),
        ((SecretStr("hidden"), 1), f"[{MASK}, 1]"),
        ("plain", "plain"),
        (None, "None"),
    ],
)
def test_secrets_are_never_shown(value: object, shown: str) -> None:
    assert format_value(value) == shown


def test_a_bad_secret_is_not_in_the_message() -> None:
    class Vault(BaseModel):
        secret: SecretStr = Field(SecretStr("long enough"), min_length=8)

    class Bank(BaseModel):
        vault: Vault = Field(default_factory=Vault)

    with pytest.raises(SettingsError) as raised:
        compose(Bank, environment={"MUSTER_VAULT__SECRET": "hidden"})
    assert "vault.secret" in str(raised.value)
    assert "hidden" not in str(raised.value)
