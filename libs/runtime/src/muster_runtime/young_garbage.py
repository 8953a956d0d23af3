"""Collects young garbage during long work, a little at a time.

Python's collector comes after some thousand objects, counted as made less freed. Work that frees as many objects as it
makes never reaches that count: its young objects become very many, and the collection that comes at last takes some ten
milliseconds. The same objects in small collections cost no more, and nothing waits for long.
"""

from __future__ import annotations

import gc
import time

# Processor time of the thread between two collections: one or two thousand objects.
_WORK_S = 0.002


class YoungGarbage:
    """The young garbage of one thread's long work."""

    def __init__(self) -> None:
        self._middle = False
        self._collected_s = time.thread_time()

    def collect_if_due(self) -> None:
        """Collects after enough work, every second time with the middle generation. To be called between two steps."""
        now_s = time.thread_time()
        if now_s - self._collected_s < _WORK_S or not gc.isenabled():
            return
        gc.collect(int(self._middle))
        self._middle = not self._middle
        self._collected_s = time.thread_time()
