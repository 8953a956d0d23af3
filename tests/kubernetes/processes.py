"""A shim's process, with what Kubernetes does for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from muster_replay.local_process import LocalProcess

# The shim ends by itself where a new registration or the Lease is needed (deploy/kubernetes/shim/README.md).
RESTARTED = (4, 5, 6)


class ShimProcess(LocalProcess):
    """A shim that is started again when it ends by itself with one of those codes, as a kubelet does.

    :param killed: called after a running process was killed.
    :ivar ends: the exit codes after which it was started again.
    """

    def __init__(
        self, command: Sequence[str], log_file: Path, environment: Mapping[str, str], killed: Callable[[], None]
    ) -> None:
        super().__init__(command, log_file, environment)
        self.ends: list[int] = []
        self._killed = killed
        self._lock = threading.Lock()
        self._wanted = threading.Event()

    def start(self) -> None:
        with self._lock:
            super().start()
            self._wanted.set()
        threading.Thread(target=self._watch, args=(self.pid,), daemon=True).start()

    def kill(self) -> None:
        with self._lock:
            self._wanted.clear()
            was_running = self.running
            super().kill()
        if was_running:
            self._killed()

    def stop(self, timeout_s: float = 60.0) -> int:
        with self._lock:
            self._wanted.clear()
        return super().stop(timeout_s)

    def _watch(self, pid: int) -> None:
        process = self._process
        assert process is not None
        code = process.wait()
        with self._lock:
            if not self._wanted.is_set() or self.pid != pid or code not in RESTARTED:
                return
            self.ends.append(code)
            super().start()
        threading.Thread(target=self._watch, args=(self.pid,), daemon=True).start()
