"""The calls that are under way, so that they end when their callers lose the rights that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from muster_runtime.caller import Caller, calling
from muster_runtime.identity import Rights

log = structlog.get_logger(__name__)


class ActiveCalls:
    """The callers of both doors whose calls are under way."""

    def __init__(self) -> None:
        self._callers: dict[Caller, None] = {}  # in the order of their coming

    def __len__(self) -> int:
        return len(self._callers)

    @contextmanager
    def track(self, caller: Caller) -> Iterator[None]:
        """Makes a caller the present one, and keeps it for :meth:`apply_rights`."""
        self._callers[caller] = None
        try:
            with calling(caller):
                yield
        finally:
            self._callers.pop(caller, None)
            caller.call_over()

    def apply_rights(self, rights_of: Callable[[Caller], Rights | None]) -> None:
        """Gives each caller its present rights. Ends the calls that use a right that is gone.

        :param rights_of: None: the identity is gone.
        """
        for caller in list(self._callers):
            if caller.replace_rights(rights_of(caller)):
                log.warning("right withdrawn", identity=caller.identity.name, method=caller.method, client=caller.peer)
