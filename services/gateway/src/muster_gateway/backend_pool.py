"""Where a service answers: several addresses of one kind of service, and which of them to ask.

A URL whose host is a name may stand for several processes, as with ``--scale view=2``; and there may be several URLs.
A gateway stays with one process while that one is good, so that answers do not go back in time from one request to the
next. It goes to another one if the process cannot be reached, or if it is far behind and another one is not.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from muster_runtime.elapsed import elapsed_s
from yarl import URL

# How long the addresses of a name count, and how long an address that cannot be reached is asked last.
_NAMES_S = 5.0
_AWAY_S = 5.0
# Records that a view may be behind. It says so in each answer; a view folds some 50,000 in a second.
FAR_BEHIND = 10_000
# A process that was far behind is looked at again after this time.
_LAG_S = 10.0


@dataclass(slots=True)
class _BackendState:
    """What is known of an address.

    :ivar away_s: when it could not be reached; ``behind_s``: when it was ``lag`` records behind.
    """

    away_s: float = float("-inf")
    behind_s: float = float("-inf")
    lag: int = 0


class BackendPool:
    """See the module's docstring.

    :param urls: http://host:port, separated by commas.
    :param far_behind: records that a process may be behind.
    """

    def __init__(self, urls: str, far_behind: int = FAR_BEHIND) -> None:
        self._urls = [URL(address.strip().rstrip("/")) for address in urls.split(",") if address.strip()]
        self._far_behind = far_behind
        self._names = [url for url in self._urls if not _is_address(url.host or "")]
        self._resolved: list[str] = [] if self._names else [str(url) for url in self._urls]
        self._states: dict[str, _BackendState] = {}
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    async def candidates(self) -> Sequence[str]:
        """Returns the addresses, as URLs: the one to ask first, then those to ask if it cannot be reached.

        Raises OSError if a name stands for nothing.
        """
        if self._names and elapsed_s() - self._looked_s >= _NAMES_S:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._resolve_names(), name="addresses")
            if not self._resolved:
                await asyncio.shield(self._looking)
        if len(self._resolved) > 1:
            now_s = elapsed_s()
            return sorted(self._resolved, key=lambda url: self._rank(url, now_s))  # a stable order
        return self._resolved

    def mark_down(self, url: str) -> None:
        """Notes that nobody answers there."""
        self._states.setdefault(url, _BackendState()).away_s = elapsed_s()

    def mark_up(self, url: str, lag: bytes | None) -> None:
        """Notes an answer, and how many records it is behind; None: it does not say."""
        if lag is None or len(self._resolved) < 2 or not lag.isdigit():
            return
        state = self._states.setdefault(url, _BackendState())
        state.lag = int(lag[:18])
        state.behind_s = elapsed_s() if state.lag > self._far_behind else float("-inf")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _rank(self, url: str, now_s: float) -> tuple[bool, int]:
        state = self._states.get(url)
        if state is None:
            return False, 0
        return now_s - state.away_s < _AWAY_S, state.lag if now_s - state.behind_s < _LAG_S else 0

    async def _resolve_names(self) -> None:
        loop, resolved = asyncio.get_running_loop(), []
        for url in self._urls:
            if url not in self._names:
                resolved.append(str(url))
                continue
            try:
                answers = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
            except OSError:
                if not self._resolved and len(self._urls) == 1:
                    raise
                continue  # the addresses of before, or of other names, serve
            resolved += [str(url.with_host(str(answer[4][0]))) for answer in answers]
        self._looked_s = elapsed_s()
        if resolved:
            # Those that are known keep their places, so that requests stay where they went.
            kept = [url for url in self._resolved if url in resolved]
            self._resolved = kept + [url for url in dict.fromkeys(resolved) if url not in kept]
            self._states = {url: state for url, state in self._states.items() if url in self._resolved}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
