"""Rates of messages and bytes, of each RM and of each identity: a stream that is too fast is read later.

A bucket fills with its rate, up to some seconds' worth. A message is always taken; if the bucket has not enough, the
stream waits until it has, and reads nothing meanwhile. So the client's flow control stops the client, and nothing is
refused. Only a call with one request, which cannot wait, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog
from muster_bus.clock import Clock
from muster_runtime.caller import Caller

from muster_gateway import metrics
from muster_gateway.errors import RateLimited, quote
from muster_gateway.quotas import QuotaBook, RateLimit

log = structlog.get_logger(__name__)

# Buckets of callers that were quiet for long are full, and need not be kept.
_ENTRIES_MAX = 10_000
# A stream that was slowed is told of again after so long without.
_CALM_S = 60.0
_NAMED_MAX = 20


class TokenBucket:
    """What one RM or identity may send."""

    __slots__ = ("_at_s", "_bytes", "_requests", "rate")

    def __init__(self, rate: RateLimit, burst_s: float, now_s: float) -> None:
        self.rate = rate
        self._requests, self._bytes = rate.requests_per_s * burst_s, rate.bytes_per_s * burst_s
        self._at_s = now_s

    def charge(self, size: int, burst_s: float, now_s: float) -> float:
        """Takes one message. Returns for how many seconds nothing more may be taken."""
        rate, gone_s, wait_s = self.rate, now_s - self._at_s, 0.0
        self._at_s = now_s
        if rate.requests_per_s:
            remaining = min(self._requests + gone_s * rate.requests_per_s, rate.requests_per_s * burst_s) - 1
            self._requests = remaining
            wait_s = -remaining / rate.requests_per_s
        if rate.bytes_per_s:
            remaining = min(self._bytes + gone_s * rate.bytes_per_s, rate.bytes_per_s * burst_s) - size
            self._bytes = remaining
            wait_s = max(wait_s, -remaining / rate.bytes_per_s)
        return max(wait_s, 0.0)

    def wait_s(self, now_s: float) -> float:
        """Returns for how many seconds nothing may be taken."""
        rate, gone_s, wait_s = self.rate, now_s - self._at_s, 0.0
        if rate.requests_per_s:
            wait_s = -(self._requests / rate.requests_per_s) - gone_s
        if rate.bytes_per_s:
            wait_s = max(wait_s, -(self._bytes / rate.bytes_per_s) - gone_s)
        return max(wait_s, 0.0)

    def is_full(self, burst_s: float, now_s: float) -> bool:
        return now_s - self._at_s > 2 * burst_s and not self.wait_s(now_s)


class RateLimiter:
    """The buckets of a gateway.

    :param notify: is called with an RM and a sentence when the RM is slowed, and again only after a minute without.
    """

    def __init__(self, book: QuotaBook, clock: Clock, notify: Callable[[str, str], None] = lambda *_: None) -> None:
        self._book, self._clock, self._notify = book, clock, notify
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._slowed: dict[str, tuple[float, str]] = {}

    def pacer_for(self, caller: Caller, rm_id: str) -> StreamPacer:
        """Returns the pace of one stream."""
        return StreamPacer(self, caller, rm_id)

    def consume(self, caller: Caller, rm_id: str, size: int) -> float:
        """Takes a message of a stream. Returns for how many seconds the stream must not be read."""
        now_s = self._clock.monotonic()
        own_s = self._bucket(caller, rm_id, now_s).charge(size, self._book.burst_s, now_s)
        all_s = self._bucket(caller, None, now_s).charge(size, self._book.burst_s, now_s)
        wait_s = max(own_s, all_s)
        if wait_s:
            metrics.streams_slowed.labels("rm" if own_s >= all_s else "identity").inc()
            metrics.streams_slowed_seconds.inc(wait_s)
            self._note_slow(caller, rm_id, now_s, own=own_s >= all_s)
        return wait_s

    def check_call(self, caller: Caller, size: int) -> None:
        """Takes a call with one request. Raises RateLimited, with the seconds to wait."""
        now_s = self._clock.monotonic()
        bucket = self._bucket(caller, None, now_s)
        if wait_s := bucket.wait_s(now_s):
            metrics.calls_refused.labels("rate").inc()
            raise RateLimited(
                f"identity {quote(caller.identity.name)} sends more than {_words(bucket.rate)} "
                f"(gateway.quotas.identity): try again in {wait_s:.1f} s",
                wait_s,
            )
        bucket.charge(size, self._book.burst_s, now_s)

    def reload(self) -> None:
        """Takes other rates from the settings or the policy."""
        self._buckets.clear()

    def problems(self) -> list[str]:
        """Returns the RMs that were slowed within the last minute, one sentence each."""
        now_s = self._clock.monotonic()
        problems = [
            f"rm {rm_id}: {message}" for rm_id, (at_s, message) in self._slowed.items() if now_s - at_s < _CALM_S
        ]
        return (
            problems if len(problems) <= _NAMED_MAX else [*problems[:_NAMED_MAX], f"{len(problems) - _NAMED_MAX} more"]
        )

    def _bucket(self, caller: Caller, rm_id: str | None, now_s: float) -> TokenBucket:
        key = ("identity", caller.identity.name) if rm_id is None else ("rm", rm_id)
        bucket = self._buckets.get(key)
        if bucket is None:
            book, identity = self._book, caller.identity
            rate = book.identity_rate(identity) if rm_id is None else book.rm_rate(identity, rm_id)
            if len(self._buckets) >= _ENTRIES_MAX:
                burst_s = book.burst_s
                self._buckets = {
                    kept_key: kept for kept_key, kept in self._buckets.items() if not kept.is_full(burst_s, now_s)
                }
            bucket = self._buckets[key] = TokenBucket(rate, book.burst_s, now_s)
        return bucket

    def _note_slow(self, caller: Caller, rm_id: str, now_s: float, *, own: bool) -> None:
        before_s, _ = self._slowed.get(rm_id, (float("-inf"), ""))
        rate = self._bucket(caller, rm_id if own else None, now_s).rate
        whose = "this resource manager" if own else f"identity {caller.identity.name}"
        message = f"quota of requests reached: {whose} sends more than {_words(rate)}; its streams are read more slowly"
        self._slowed[rm_id] = (now_s, message)
        if now_s - before_s < _CALM_S:
            return
        if len(self._slowed) > _ENTRIES_MAX:
            self._slowed = {slowed_rm: kept for slowed_rm, kept in self._slowed.items() if now_s - kept[0] < _CALM_S}
        log.warning("stream slowed", rm_id=rm_id, identity=caller.identity.name, story=message)
        self._notify(rm_id, message)


class StreamPacer:
    """The pace of one stream."""

    def __init__(self, rates: RateLimiter, caller: Caller, rm_id: str) -> None:
        self._rates, self._caller, self._rm_id = rates, caller, rm_id

    def consume(self, size: int) -> float:
        """As :meth:`Rates.consume`."""
        return self._rates.consume(self._caller, self._rm_id, size)


def pushback(wait_s: float) -> tuple[tuple[str, str]]:
    """Returns the metadata that tells gRPC clients when to try again."""
    return (("grpc-retry-pushback-ms", str(math.ceil(wait_s * 1000))),)


def _words(rate: RateLimit) -> str:
    parts = [f"{rate.requests_per_s:g} requests"] if rate.requests_per_s else []
    parts += [f"{rate.bytes_per_s:g} bytes"] if rate.bytes_per_s else []
    return f"{' or '.join(parts)} in a second"
