"""Reading YAML for requests: one text at a time, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class YamlExecutor:
    """One reading at a time: a large text takes seconds."""

    def __init__(self) -> None:
        self._reading_yaml = asyncio.Lock()

    async def read(self, read: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Reads YAML, which may take seconds: one text at a time, beside the event loop."""
        async with self._reading_yaml:
            return await asyncio.to_thread(read, *args, **kwargs)
