"""Open addresses: refused starts, compose's settings, tokens of commands, and no token in any output."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import documents
import pytest
from muster_cli import bootstrap
from muster_cli.addresses import check_private
from muster_cli.errors import UsageError
from muster_cli.flags import AccessFlags, token_of
from muster_cli.main import run
from muster_cli.settings import STANDALONE_DEFAULTS, MusterSettings, load
from muster_cli.settings_loader import iter_settings
from muster_client.access import Access
from muster_gateway.access.policy import read_policy
from muster_replay.replay import ReplayOptions
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
TOKEN = "quite-a-secret-token-0"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("MUSTER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


# ---- starts ---------------------------------------------------------------------------------------------------------

UP = ["up", "--data-dir", "d", "--grpc-address", "127.0.0.1:0"]


@pytest.mark.parametrize(
    ("arguments", "setting", "ways_out"),
    [
        ([*UP, "--http-address", "0.0.0.0:0"], "gateway.http_address 0.0.0.0:0", ["tokens", "http_open=true"]),
        ([*UP, "--http-address", "[::]:0"], "gateway.http_address [::]:0", ["tokens", "http_open=true"]),
        (
            [*UP, "--http-address", "0.0.0.0:0", "--set", "process.trusted_network=true"],
            "gateway.http_address 0.0.0.0:0",
            ["tokens", "http_open=true"],
        ),
        (
            [*UP, "--http-address", "127.0.0.1:0", "--set", "view.http_address=0.0.0.0:0"],
            "view.http_address 0.0.0.0:0",
            ["process.trusted_network=true"],
        ),
        (["gateway", "--grpc-address", "127.0.0.1:0", "--http-address", "0.0.0.0:0"], "gateway.http_address", []),
        (
            ["up", "--data-dir", "d", "--grpc-address", "0.0.0.0:0", "--http-address", "127.0.0.1:0"],
            "gateway.grpc_address 0.0.0.0:0",
            ["gateway.tokens", "grpc_open=true"],
        ),
        (["gateway", "--grpc-address", "[::]:0", "--http-address", ""], "gateway.grpc_address [::]:0", ["grpc_open"]),
        (["view", "--http-address", "0.0.0.0:9"], "view.http_address 0.0.0.0:9", ["process.trusted_network=true"]),
        (["event-publisher", "--http-address", "[::]:9"], "publisher.http_address [::]:9", ["trusted_network=true"]),
        (
            ["event-publisher", "--set", "publisher.grpc_address=0.0.0.0:9"],
            "publisher.grpc_address 0.0.0.0:9",
            ["trusted_network=true"],
        ),
        (["scheduler", "--http-address", "0.0.0.0:9"], "scheduler.http_address 0.0.0.0:9", ["trusted_network=true"]),
        (["derive", "--http-address", "0.0.0.0:9"], "derive.http_address 0.0.0.0:9", ["trusted_network=true"]),
    ],
)
def test_a_door_for_everybody_is_not_opened(
    arguments: list[str], setting: str, ways_out: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"muster: {setting}")
    assert len(said.splitlines()) == 1
    assert all(way in said for way in [*ways_out, "127.0.0.1", "docs/security.md"])
    assert not Path("d").exists(), "nothing is made before"


def test_a_token_that_cannot_be_read_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = json.dumps({"ops": {"role": "admin", "token_file": "absent"}})
    assert run([*UP, "--http-address", "127.0.0.1:0", "--set", f"gateway.tokens={table}"]) == 2
    said = capsys.readouterr().err
    assert said == "muster: gateway.tokens.ops.token_file absent: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("trusted", [True, False])
def test_the_loopback_and_no_address_are_always_well(trusted: bool) -> None:
    for address in ("", "127.0.0.1:9081", "[::1]:0", "localhost:9081"):
        check_private("view.http_address", address, trusted_network=trusted)
    if trusted:
        check_private("view.http_address", "0.0.0.0:9081", trusted_network=True)
    with pytest.raises(UsageError, match=r"view\.http_address: nobody\.invalid:1: no such host here"):
        check_private("view.http_address", "nobody.invalid:1", trusted_network=False)


# ---- compose --------------------------------------------------------------------------------------------------------


def _compose(variables: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return each of our services with its environment, as compose reads compose.yaml."""
    services = YAML(typ="safe").load(ROOT / "deploy/compose/compose.yaml")["services"]

    def filled_in(value: object) -> str:
        return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1]) or found[2], str(value))

    return {
        name: {key: filled_in(value) for key, value in service["environment"].items() if key.startswith("MUSTER_")}
        for name, service in services.items()
        if "muster" in str(service["image"])
    }


def _settings(environment: dict[str, str]) -> MusterSettings:
    return load(None, (), (), STANDALONE_DEFAULTS, environment).values


def test_the_stack_starts_as_it_is_and_only_because_it_says_so() -> None:
    stack = _compose({})
    assert set(stack) == {"scheduler", "gateway", "view", "event-publisher", "derive"}
    for name, environment in stack.items():
        bootstrap._check_listeners(_settings(environment), name)  # type: ignore[arg-type]
        if name == "gateway":
            shut = {**environment, "MUSTER_GATEWAY__GRPC_OPEN": "false"}
            with pytest.raises(UsageError, match=r"gateway\.grpc_address 0\.0\.0\.0:"):
                bootstrap._check_listeners(_settings(shut), "gateway")
        for spared in ("MUSTER_PROCESS__TRUSTED_NETWORK", "MUSTER_GATEWAY__HTTP_OPEN"):
            environment.pop(spared, None)
        with pytest.raises(UsageError, match=r"\.http_address 0\.0\.0\.0:"):
            bootstrap._check_listeners(_settings(environment), name)  # type: ignore[arg-type]


def test_the_stacks_front_is_for_reading_and_env_closes_it() -> None:
    gateway = _settings(_compose({})["gateway"]).gateway
    assert (gateway.http_open, gateway.http_open_role, gateway.tokens) == (True, "read", {})
    closed = _compose({"MUSTER_HTTP_OPEN": "false"})["gateway"]
    with pytest.raises(UsageError, match=r"gateway\.tokens\.NAME"):
        bootstrap._check_listeners(_settings(closed), "gateway")
    environment = {**closed, "MUSTER_GATEWAY__TOKENS": json.dumps({"ops": {"role": "admin", "token": TOKEN}})}
    bootstrap._check_listeners(_settings(environment), "gateway")


# ---- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        f'{{"ops": {{"role": "admin", "token": "{TOKEN}"',
        f'{{"ops": {{"role": "admin", "token": "{TOKEN} "}}}}',
        f'{{"ops": {{"role": "root", "token": "{TOKEN}"}}}}',
        f'{{"ops": "{TOKEN}"}}',
        f'["{TOKEN}"]',
        TOKEN,
    ],
)
def test_a_wrong_table_of_tokens_is_an_error_that_shows_none(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--set", f"gateway.tokens={given}"]) == 2
    said = capsys.readouterr()
    assert "gateway.tokens" in said.err
    assert TOKEN not in said.err + said.out


def test_config_show_masks_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    table = json.dumps({"ops": {"role": "admin", "token": TOKEN}})
    for form in ([], ["--json"]):
        assert run(["config", "show", *form, "--set", f"gateway.tokens={table}"]) == 0
        said = capsys.readouterr().out
        assert "ops" in said
        assert TOKEN not in said


# ---- a command's own token ------------------------------------------------------------------------------------------


def test_a_commands_token_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert token_of(file, {"MUSTER_TOKEN": "another"}) == TOKEN
    assert token_of(None, {"MUSTER_TOKEN": f" {TOKEN} "}) == TOKEN
    assert token_of(None, {}) == ""
    assert TOKEN not in repr(ReplayOptions(access=Access(token=TOKEN)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty, expected a token"),
        (b"two words", "not a token: it has blanks"),
        (b"a\nb", "not a token: it has blanks"),
        (b"\xff\xfe", "not a token"),
    ],
)
def test_a_file_without_one_is_one_line(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    assert run(["health", "http://127.0.0.1:1", "--token-file", str(file)]) == 2
    assert said in capsys.readouterr().err
    assert run(["health", "http://127.0.0.1:1", "--token-file", "absent"]) == 2
    assert "--token-file absent: cannot be read: No such file" in capsys.readouterr().err


# ---- docs -----------------------------------------------------------------------------------------------------------


_IDENTITIES = (
    "tokens",
    "http_open",
    "http_open_role",
    "grpc_open",
    "grpc_mtls_address",
    "tls",
    "jwt",
    "policy_file",
    "reload_interval_s",
    "trusted_proxies",
)


def test_the_documentation_has_the_settings_as_they_are() -> None:
    rows = documents.table(documents.page("security-settings.md"), "## Settings")
    said = {row[0].strip("`"): row[1].strip("`") for row in rows}
    settings = MusterSettings()
    wanted = [
        ".".join(path)
        for path, _, _ in iter_settings(MusterSettings)
        if path[0] == "gateway" and path[1] in _IDENTITIES
    ]
    assert set(said) == {*wanted, "process.trusted_network"}
    assert len(said) == len(rows)
    for name, default in said.items():
        value: object = settings
        for part in name.split("."):
            value = getattr(value, part)
        assert str(value) == default


def test_the_documentation_has_the_flags_of_access() -> None:
    rows = documents.table(documents.page("security-settings.md"), "## Clients and commands")
    said = [name.replace("-", "_") for row in rows for name in re.findall(r"--([a-z-]+)", row[0])]
    assert said == [each.name for each in dataclasses.fields(AccessFlags)]


# ---- policy files ---------------------------------------------------------------------------------------------------


def test_config_check_takes_a_policy_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[[rule]]\nidentities = ["rm-*"]\nact = ["prod"]\nread = [{rm = "shared", partitions = ["gpu"]}]\n')
    assert run(["config", "check", str(file)]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("rm-*", "prod", "shared", "gpu", "can be used"))
    file.write_text(f'{file.read_text()}[[quota]]\nrms = ["batch-*"]\nnodes = 7\nasks = 0\n')
    assert run(["config", "check", str(file)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert all(word in said for word in ("batch-*", "nodes = 7", "asks: no limit"))
    file.write_text('[[rule]]\nidentities = ["a"]\nrole = "root"\n[[rule]]\nact = []\n')
    assert run(["config", "check", str(file)]) == 1
    said = capsys.readouterr().out
    assert "rule[0].role 'root'" in said
    assert "rule[1].identities: Field required" in said
    assert run(["up", "--data-dir", "d", "--set", f"gateway.policy_file={file}", *UP[3:], "--http-address", ""]) == 2
    assert "rule[0].role 'root'" in capsys.readouterr().err
    assert not Path("d").exists()


def test_the_policy_of_the_documentation_can_be_used(tmp_path: Path) -> None:
    texts = re.findall(r"```toml\n(.*?)```", documents.page("security-rights.md", "security-settings.md"), re.DOTALL)
    policies = [text for text in texts if "[[rule]]" in text]
    assert len(policies) == 1
    file = tmp_path / "policy.toml"
    file.write_text(policies[0])
    assert len(read_policy(file).rule) == 3
    (settings,) = [text for text in texts if "[[rule]]" not in text and "[[quota]]" not in text]
    (tmp_path / "muster.toml").write_text(settings)
    load(tmp_path / "muster.toml", (), (), STANDALONE_DEFAULTS, {})
