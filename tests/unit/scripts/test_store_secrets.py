"""scripts/store-secrets and scripts/pin-images."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts/store-secrets"
PIN = ROOT / "scripts/pin-images"
DIGEST = f"sha256:{'ab' * 32}"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("secrets") / "deep" / "secrets"
    _run(directory)
    return directory


def _run(directory: Path) -> None:
    subprocess.run([str(SCRIPT), str(directory)], check=True, capture_output=True, timeout=120)


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_it_makes_every_file_that_the_stack_mounts(secrets: Path) -> None:
    wanted = re.findall(
        r"\$\{SECRETS_DIR:-\./secrets\}/([\w.-]+)", (ROOT / "deploy/compose/compose.secure.yaml").read_text()
    )
    assert len(wanted) >= 10
    assert set(wanted) <= set(_contents(secrets))


def test_only_its_owner_gets_to_them(secrets: Path) -> None:
    assert secrets.stat().st_mode & 0o777 == 0o700
    for path in secrets.iterdir():
        assert path.stat().st_mode & 0o777 == (0o400 if path.name == "ca.key" else 0o444), path.name


def test_each_password_is_its_own_and_redis_knows_a_digest_only(secrets: Path) -> None:
    passwords = [path.read_text().strip() for path in [*secrets.glob("*.password"), *secrets.glob("*.token")]]
    assert len(set(passwords)) == len(passwords) == 7
    assert all(re.fullmatch("[0-9a-f]{64}", password) for password in passwords)
    acl = (secrets / "redis.acl").read_text()
    redis = (secrets / "redis-muster.password").read_text().strip()
    assert redis not in acl
    assert f"#{hashlib.sha256(redis.encode()).hexdigest()} " in acl
    assert "user default reset off" in acl


def test_the_certificates_pass_the_strictest_check(secrets: Path) -> None:
    for name, purpose in (
        ("kafka", "sslserver"),
        ("redis", "sslserver"),
        ("postgres", "sslserver"),
        ("client", "sslclient"),
    ):
        command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.crt", f"{name}.crt"]
        subprocess.run(command, cwd=secrets, check=True, capture_output=True, timeout=60)


def test_a_second_run_keeps_what_is_there_and_makes_what_is_not(secrets: Path) -> None:
    before = _contents(secrets)
    _run(secrets)
    assert _contents(secrets) == before
    gone = ("redis-muster.password", "postgres.crt", "postgres.key")
    for name in gone:
        (secrets / name).unlink()
    _run(secrets)
    after = _contents(secrets)
    assert {name for name in before if after[name] != before[name]} == {*gone, "redis.acl"}
    test_each_password_is_its_own_and_redis_knows_a_digest_only(secrets)


def test_images_are_pinned_or_left(tmp_path: Path) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\n[ "$1" = buildx ] && [ "$6" = known:1 ] && echo {DIGEST}\n')
    docker.chmod(0o755)
    file = tmp_path / "images.env"
    file.write_text(f"# about\nA_IMAGE=known:1\nB_IMAGE=unknown:2\nC_IMAGE=known:1@sha256:{'0' * 64}\n")
    environment = {**os.environ, "PATH": f"{docker.parent}:{os.environ['PATH']}"}
    ended = subprocess.run([str(PIN), str(file)], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.strip() == "not looked up, and left as it was: unknown:2"
    assert file.read_text() == f"# about\nA_IMAGE=known:1@{DIGEST}\nB_IMAGE=unknown:2\nC_IMAGE=known:1@{DIGEST}\n"
