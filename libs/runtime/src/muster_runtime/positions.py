"""Reads that wait until what a service shows includes their client's position (docs/consistency.md).

A read that names a position (``Muster-After``, in gRPC the metadata ``muster-after``) waits here before it begins, so a
waiting read has none of the places of those that read. How many may wait is bounded, for each caller and for all.
Reads without a position never come here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Protocol

from muster_si.positions import (
    AFTER_HEADER,
    AFTER_METADATA,
    WAIT_HEADER,
    WAIT_METADATA,
    BadPosition,
    Position,
    Stamp,
    log_digest,
)
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from muster_runtime.backoff import before_deadline_s
from muster_runtime.go_json import error_body
from muster_runtime.identity import IDENTITY_HEADER
from muster_runtime.service_lifecycle import run_until, wait_disconnected

_AFTER, _WAIT, _FORWARDED = AFTER_METADATA.encode(), WAIT_METADATA.encode(), b"x-forwarded-for"
_REFUSED, _AGAIN = 400, 503
# A read that has waited for so long asks the log whether its position exists. Nearly all wait for less. (The log of a
# process that follows another one may be as late.)
_FUTURE_CHECK_S = 0.25
# A client with a deadline gets the answer so long before it: the library's own text says less.
_MARGIN_S = 0.2
_JSON = b"application/json; charset=UTF-8"


class PositionSettings(BaseModel):
    """Limits of the reads that wait for a position."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    wait_s: float = Field(
        default=5.0, ge=0, description="Longest wait of a read whose client does not say how long (Muster-Wait)."
    )
    wait_max_s: float = Field(default=60.0, ge=0, description="Longest wait that a client can ask for.")
    waiting_per_caller_max: int = Field(
        default=32, ge=1, description="Reads of one caller that wait at the same time; more get a 503."
    )
    waiting_max: int = Field(default=512, ge=1, description="Reads of all callers that wait; more get a 503.")


class Shown(Protocol):
    """A log partition, as a service shows it."""

    @property
    def stamp(self) -> Stamp:
        """How far the partition's state is shown."""
        ...

    def includes(self, stamp: Stamp) -> bool:
        """Tells whether everything up to a stamp is shown."""
        ...

    async def wait_included(self, stamp: Stamp) -> None:
        """Returns when everything up to a stamp is shown. Callers bound the wait."""
        ...


class ReadRefused(Exception):
    """A read is not answered.

    :ivar status: HTTP's: 400 if it never will be, 503 if it may be later.
    :ivar is_over_limit: too many reads wait already.
    """

    def __init__(self, status: int, message: str, *, is_over_limit: bool = False) -> None:
        super().__init__(message)
        self.status, self.is_over_limit = status, is_over_limit


# What a read waits for, with the number of the log partition.
_Target = tuple[Shown, int, Stamp]


class PositionWaits:
    """Lets the reads of a service wait.

    :param service: its name in messages: ``the view``.
    :param shown: by log partition.
    :param identity: returns the log's.
    :param requests_end: returns where the requests of a log partition end.
    """

    def __init__(
        self,
        service: str,
        settings: PositionSettings,
        shown: Sequence[Shown],
        identity: Callable[[], Awaitable[str]],
        requests_end: Callable[[int], Awaitable[int]],
    ) -> None:
        self._service, self._settings, self._shown = service, settings, shown
        self._identity, self._requests_end = identity, requests_end
        self._log = b""
        self._waiting: Counter[str] = Counter()

    def of(self, service: str, shown: Sequence[Shown]) -> PositionWaits:
        """Returns the waits for something else that the same process shows. All count together."""
        waits = copy(self)
        waits._service, waits._shown = service, shown
        return waits

    @property
    def waiting(self) -> int:
        """How many reads wait."""
        return self._waiting.total()

    async def wait(self, after: str, wait_s: float | None, caller: str) -> None:
        """Returns when everything that a position includes is shown.

        :param after: positions, separated by commas.
        :param wait_s: how long the client waits; None: it does not say.
        :param caller: whose reads count together.

        Raises ReadRefused.
        """
        stamps = await self._stamps(after)
        if not self._has_all(stamps):
            await self._wait(stamps, wait_s, caller)

    async def _wait(self, stamps: Sequence[_Target], wait_s: float | None, caller: str) -> None:
        settings = self._settings
        wait_s = min(settings.wait_s if wait_s is None else wait_s, settings.wait_max_s)
        with self._slot(caller):
            first_s = min(wait_s, _FUTURE_CHECK_S)
            if await self._included(stamps, first_s):
                return
            await self._refuse_future(stamps)
            if await self._included(stamps, wait_s - first_s):
                return
        raise ReadRefused(
            _AGAIN, f"{self._service} has not reached {AFTER_HEADER} in {wait_s:g} s: {self._lag(stamps)}"
        )

    async def admit_http(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Lets a request wait for the position that it names, if it names one. Returns False if the request is over:
        it got its refusal, or its client has left.
        """
        after, wait = position_given(scope["headers"])
        if not after:
            return True
        try:
            wait_s, stamps = seconds(wait), await self._stamps(after)
            if self._has_all(stamps):
                return True
            waiting = self._wait(stamps, wait_s, _caller_of(scope))
            if scope["method"] in ("GET", "HEAD"):
                return await run_until(waiting, wait_disconnected(receive))
            await waiting  # (The endpoint reads the request's body.)
        except ReadRefused as refused:
            await _refuse(send, refused)
            return False
        return True

    async def admit_grpc(self, context: Any, caller: str) -> None:
        """Does the same for a call. Raises ReadRefused.

        :param context: gRPC's.
        """
        metadata = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        if after := metadata.get(AFTER_METADATA, ""):
            await self.wait(after, wait_of(metadata.get(WAIT_METADATA, ""), context.time_remaining()), caller)

    async def _stamps(self, after: str) -> list[_Target]:
        """Reads positions. Raises ReadRefused."""
        if not self._log:
            self._log = log_digest(await self._identity())
        targets: list[_Target] = []
        for text in filter(None, map(str.strip, after.split(","))):
            try:
                position = Position.parse(text)
            except BadPosition as error:
                raise ReadRefused(_REFUSED, f"{AFTER_HEADER}: {error}") from None
            if position.log != self._log or any(number >= len(self._shown) for number in position.stamps):
                raise ReadRefused(
                    _REFUSED, f"{AFTER_HEADER}: must be a position of this Muster's log, got one of another log"
                )
            targets += ((self._shown[number], number, stamp) for number, stamp in position.stamps.items())
        return targets

    def _has_all(self, stamps: Iterable[_Target]) -> bool:
        return all(shown.includes(stamp) for shown, _, stamp in stamps)

    async def _included(self, stamps: Sequence[_Target], within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, within_s)):
                for shown, _, stamp in stamps:
                    await shown.wait_included(stamp)
        return self._has_all(stamps)

    async def _refuse_future(self, stamps: Sequence[_Target]) -> None:
        """Raises ReadRefused for a position behind the log's end: it is of a log that has lost records since."""
        for shown, number, stamp in stamps:
            end = max(await self._requests_end(number), shown.stamp.before)
            if stamp.before > end:
                raise ReadRefused(
                    _REFUSED,
                    f"{AFTER_HEADER}: must be a position up to the log's end, got one of the future "
                    f"({stamp.before - end} requests behind the end; was a backup restored?)",
                )

    def _lag(self, stamps: Sequence[_Target]) -> str:
        behind = sum(max(0, stamp.before - shown.stamp.before) for shown, _, stamp in stamps)
        return f"it is {behind} requests behind" if behind else "it lacks what was decided since the last request"

    @contextlib.contextmanager
    def _slot(self, caller: str) -> Iterator[None]:
        """Counts a waiting read. Raises ReadRefused."""
        settings, own = self._settings, self._waiting[caller]
        if own >= settings.waiting_per_caller_max or self.waiting >= settings.waiting_max:
            whose = "of this caller " if own >= settings.waiting_per_caller_max else ""
            count = own if whose else self.waiting
            raise ReadRefused(
                _AGAIN, f"{count} reads {whose}wait for a position already: try again", is_over_limit=True
            )
        self._waiting[caller] += 1
        try:
            yield
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]


def seconds(text: str) -> float | None:
    """Reads how long a client waits; None for "". Raises ReadRefused."""
    if not text:
        return None
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = math.nan
    if not 0 <= wait_s < math.inf:
        raise ReadRefused(_REFUSED, f"{WAIT_HEADER}: must be a number of seconds from 0, got {text[:40]!a}")
    return wait_s


def wait_of(text: str, left_s: float | None) -> float | None:
    """Returns how long a gRPC call waits: as its client says, but not longer than until shortly before its deadline;
    None: neither is given. Raises ReadRefused.
    """
    wait_s = seconds(text)
    if left_s is None or left_s == math.inf:
        return wait_s
    left_s = before_deadline_s(left_s, _MARGIN_S)
    return left_s if wait_s is None else min(wait_s, left_s)


def position_given(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str]:
    """Returns the position that a request names, and how long its client waits, as it says; "" for what is absent."""
    after, wait = list[str](), ""
    for name, value in headers:
        if name == _AFTER:
            after.append(value.decode("latin-1"))
        elif name == _WAIT:
            wait = value.decode("latin-1")
    return ",".join(after), wait


def _caller_of(scope: Scope) -> str:
    """Returns whose reads count together: an identity at an address, as the gateway tells both."""
    client = _header(scope, _FORWARDED).rpartition(",")[2].strip()
    if not client and scope.get("client"):
        client = str(scope["client"][0])
    return f"{_header(scope, IDENTITY_HEADER)}@{client}"


def _header(scope: Scope, name: bytes) -> str:
    """Returns the last header of a name; "" if there is none."""
    return next(
        (value.decode("latin-1") for header_name, value in reversed(scope["headers"]) if header_name == name), ""
    )


async def _refuse(send: Send, refused: ReadRefused) -> None:
    body = error_body(refused.status, str(refused))
    headers = [
        (b"content-type", _JSON),
        (b"content-length", str(len(body)).encode()),
        (b"access-control-allow-origin", b"*"),
    ]
    if refused.status == _AGAIN:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
