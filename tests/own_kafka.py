"""A Kafka broker of a test's own. It is always a process of this machine, so that its files can be read and changed."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import servers
from wanting import server_wanted


class OwnKafka:
    """See the module. :func:`own_kafka` starts and ends it.

    :ivar address: "host:port"; it survives :meth:`stop` and :meth:`start`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server = servers.own_local("kafka", directory)
        self.address = self._server.address

    def folder(self, topic: str, partition: int = 0) -> Path:
        """Returns the folder with the files of a partition."""
        return self._directory / "kafka" / "data" / f"{topic}-{partition}"

    def segment(self, topic: str, partition: int = 0) -> Path:
        """Returns the newest file with records of a partition."""
        return max(self.folder(topic, partition).glob("*.log"))

    def configure(self, name: str, value: str) -> None:
        """Sets a property, for the next start."""
        with (self._directory / "kafka" / "server.properties").open("a") as file:
            file.write(f"{name}={value}\n")

    def stop(self) -> None:
        """Ends the broker in order: all that it has is in its files."""
        servers.stop(self._server)

    def start(self) -> None:
        """Starts the stopped broker with its files as they are now; returns when it answers."""
        with server_wanted():
            self._server = servers.start_again(self._server, self._directory)


@contextlib.contextmanager
def own_kafka() -> Iterator[OwnKafka]:
    """Started, and ended. The test is skipped, or fails, where no broker can run (wanting.py)."""
    with tempfile.TemporaryDirectory(prefix="muster-own-kafka-", ignore_cleanup_errors=True) as directory:
        with server_wanted():
            broker = OwnKafka(Path(directory))
        try:
            yield broker
        finally:
            broker.stop()
