"""A real Prometheus for tests. (Installed, it would serve on port 9090, which is the gateway's.)"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster_replay.local_process import free_ports
from unpacked import program, serving

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
    start = program("prometheus", "usr/bin/prometheus")
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

    def ask() -> Prometheus:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=60):
            return Prometheus(address)

    with serving(command, directory / "prometheus.log", ask, (OSError,)) as it:
        yield it
