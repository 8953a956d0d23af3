"""What `make dist` builds, installed into empty environments, away from the checkout (`make dist-test`).

Versions are those of the lock. Distributions that the lock names come from pip's cache or its index.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NAMES = {
    f"muster-{VERSION}-py3-none-any.whl",
    f"muster-{VERSION}.tar.gz",
    f"muster_client-{VERSION}-py3-none-any.whl",
    f"muster_client-{VERSION}.tar.gz",
}
CLIENT_MIB_MAX = 30
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "scripts/dist", out], check=True, capture_output=True, env=environment())
    return out


def environment() -> dict[str, str]:
    """The environment without what would let an installation see the checkout, or wait for a mirror."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "PYTHON", "COV_"))} | {
        "PYTHON": sys.executable
    }


class Installed:
    """An environment with one wheel in it. Its working directory is empty."""

    def __init__(self, directory: Path, dist: Path, wanted: str) -> None:
        began = time.monotonic()
        self.directory, self.work = directory, directory / "work"
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        self.work.mkdir()
        pins = directory / "pins.txt"
        pins.write_text("\n".join(re.findall(r"^[\w.-]+==[^\\\n]+", (ROOT / "requirements/muster.lock").read_text(), re.M)))
        self.run("python", "-m", "pip", "install", "--quiet", "--find-links", dist, "--constraint", pins, wanted)
        self.took_s = time.monotonic() - began

    def run(self, program: str, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.directory / "bin" / program, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.work,
            env=environment(),
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def mib(self) -> float:
        """What the wheel brought: all but pip and what comes with it."""
        [packages] = (self.directory / "lib").glob("python3*/site-packages")
        own = re.compile(r"(pip|setuptools|pkg_resources|_distutils_hack)\b")
        files = (file for file in packages.rglob("*") if not own.match(file.relative_to(packages).parts[0]))
        return sum(file.lstat().st_blocks for file in files) * 512 / (1 << 20)


@pytest.fixture(scope="module")
def client(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("client"), built, f"muster-client=={VERSION}")


@pytest.fixture(scope="module")
def muster(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("muster"), built, f"muster=={VERSION}")


def test_the_same_tree_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    assert {file.name for file in built.iterdir()} == NAMES
    subprocess.run([ROOT / "scripts/dist", tmp_path], check=True, capture_output=True, env=environment())
    assert {name: sha256(built / name) for name in NAMES} == {name: sha256(tmp_path / name) for name in NAMES}


@pytest.mark.parametrize("name", ["muster", "muster_client"])
def test_the_source_distribution_gives_the_same_wheel(built: Path, tmp_path: Path, name: str) -> None:
    subprocess.run(["tar", "xzf", built / f"{name}-{VERSION}.tar.gz", "-C", tmp_path], check=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        check=True,
        capture_output=True,
        cwd=tmp_path / f"{name}-{VERSION}",
        env=environment() | {"SOURCE_DATE_EPOCH": "1580601600"},
    )
    wheel = f"{name}-{VERSION}-py3-none-any.whl"
    assert sha256(tmp_path / wheel) == sha256(built / wheel)


def test_the_client_is_small_and_has_no_server(client: Installed) -> None:
    client.run("python", "-m", "pip", "check")
    packages = client.run("python", "-m", "pip", "list", "--format=json").stdout
    names = {item["name"] for item in json.loads(packages)} - {"pip", "setuptools"}
    assert names == {"grpcio", "muster-client", "protobuf", "structlog", "typing_extensions"}
    print(f"muster-client: {client.mib():.1f} MiB, installed in {client.took_s:.1f} s")
    assert client.mib() <= CLIENT_MIB_MAX


def test_all_of_the_client_can_be_imported(client: Installed) -> None:
    client.run(
        "python",
        "-c",
        "import pkgutil, importlib, muster_client\n"
        "for one in pkgutil.iter_modules(muster_client.__path__): importlib.import_module('muster_client.' + one.name)",
    )


def test_the_client_gets_an_allocation(client: Installed, muster: Installed, tmp_path: Path) -> None:
    """The shortest resource manager of examples/ has nothing but the client."""
    shutil.copy(ROOT / "examples/rm_minimal.py", client.work)
    with up(muster, tmp_path / "data") as address:
        began = time.monotonic()
        assert "run task-0 on node-1" in client.run("python", "rm_minimal.py", address).stdout
        print(f"from its start to the end of rm_minimal.py: {time.monotonic() - began:.1f} s")


@contextmanager
def up(muster: Installed, data_dir: Path) -> Iterator[str]:
    """A `muster up` of the wheel, by its gRPC address."""
    began = time.monotonic()
    command: list[str | Path] = [muster.directory / "bin/muster", "up", "--data-dir", data_dir]
    addresses = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    log = (data_dir.parent / "log").open("w+")
    with subprocess.Popen(
        [*command, *addresses], stdout=subprocess.PIPE, stderr=log, text=True, cwd=muster.work, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            shown = ""
            for line in process.stdout:
                shown += line
                if found := re.search(r"gRPC +(127\.0\.0\.1:[1-9]\d*) ", line):
                    print(f"ready after {time.monotonic() - began:.1f} s")
                    yield found[1]
                    return
            log.seek(0)
            raise AssertionError(shown + log.read())
        finally:
            process.terminate()
            process.wait(60)


def test_the_base_has_no_extra(muster: Installed) -> None:
    muster.run("python", "-m", "pip", "check")
    print(f"muster: {muster.mib():.0f} MiB, installed in {muster.took_s:.1f} s")
    packages = muster.run("python", "-m", "pip", "list", "--format=json").stdout
    names = {item["name"] for item in json.loads(packages)}
    assert not names & {"aiokafka", "asyncpg", "faust-streaming", "ldap3", "matplotlib", "redis"}


def test_what_belongs_beside_the_program_is_there(muster: Installed) -> None:
    share = muster.directory / "share"
    system = ROOT / "deploy/system"
    for installed, ours in {
        "man/man1/muster.1": "muster.1",
        "bash-completion/completions/muster": "completions/muster.bash",
        "zsh/site-functions/_muster": "completions/_muster",
        "fish/vendor_completions.d/muster.fish": "completions/muster.fish",
        "muster/muster.service": "muster.service",
        "muster/muster.toml": "muster.toml",
    }.items():
        assert (share / installed).read_text() == (system / ours).read_text()


def test_version(muster: Installed) -> None:
    assert json.loads(muster.run("muster", "version", "--json").stdout)["muster"] == VERSION


def test_the_demo_finds_its_trace(muster: Installed, tmp_path: Path) -> None:
    shown = muster.run("muster", "demo", "--data-dir", tmp_path / "data").stdout
    assert "Every task is accounted for exactly once." in shown
    assert list(muster.work.iterdir()) == []


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("kafka", "view --set log.backend=kafka"),
        ("faust", "derive --set log.backend=kafka"),
        ("redis", "up --data-dir data --set gateway.sessions_url=redis://127.0.0.1:1/0 --http-address 127.0.0.1:0 "
         "--grpc-address 127.0.0.1:0"),
        ("postgres", "up --data-dir data --set publisher.postgres_dsn=postgresql://muster@127.0.0.1:1/muster "
         "--http-address 127.0.0.1:0 --grpc-address 127.0.0.1:0"),
        ("plot", "history usage --queue root --plot usage.png --data-dir data"),
        ("kafka", "topics verify --set log.backend=kafka"),
    ],
)  # fmt: skip
def test_a_missing_extra_is_named(muster: Installed, extra: str, arguments: str) -> None:
    refused = muster.run("muster", *arguments.split(), code=2)
    assert f"pip install 'muster[{extra}]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    subprocess.run(["rm", "-rf", muster.work / "data"], check=True)
