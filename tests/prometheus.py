"""A real Prometheus for tests: Debian's, from PATH or out of its package, which `make test` unpacks.

(Installed, it would be a service of the machine on port 9090, which is the gateway's.)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster_replay.local_process import free_ports
from servers import NoServer

ANSWER_TIMEOUT_S = 60.0
# As docs/metrics.md says of `muster up`.
_CONFIG = """
global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}
scrape_configs:
  - job_name: muster
    static_configs: [{{targets: ["{target}"]}}]
  - job_name: view
    metrics_path: /ws/v1/metrics
    static_configs: [{{targets: ["{target}"]}}]
"""


def program() -> Path:
    """Where it is. Raises NoServer."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / "prometheus"
    found = shutil.which("prometheus") or next(
        (str(each) for each in [cache / "usr/bin/prometheus"] if each.exists()), ""
    )
    if not found:
        raise NoServer(f"no prometheus: not in PATH, nor in {cache} (scripts/test-servers puts it there)")
    return Path(found)


class Prometheus:
    """It asks one `muster up`, and answers queries."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series and their values now. Raises urllib.error.HTTPError for what is no PromQL."""
        with urllib.request.urlopen(f"{self._url}/query?query={urllib.parse.quote(expression)}", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def values(self, expression: str) -> list[float]:
        return [float(each["value"][1]) for each in self.query(expression)]

    def targets(self) -> list[dict[str, Any]]:
        """Whom it asks, with what it says of them."""
        with urllib.request.urlopen(f"{self._url}/targets", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["activeTargets"]
        return found


@contextmanager
def asking(target: str, directory: Path, interval: str = "500ms") -> Iterator[Prometheus]:
    """A Prometheus that asks the REST front of a `muster up` at ``host:port``. Raises NoServer."""
    start = program()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "prometheus.yml").write_text(_CONFIG.format(target=target, interval=interval))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [
        str(start),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--query.lookback-delta=30s",
    ]
    log = directory / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        _await_answer(f"http://{address}/-/ready", process, log)
        yield Prometheus(address)
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=60)


def _await_answer(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=60):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"prometheus is not ready: {log.read_text()[-2000:]}")
