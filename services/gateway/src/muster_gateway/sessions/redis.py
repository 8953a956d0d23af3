"""Sessions in Redis, shared by all gateways of a Muster.

Keys, each with the configured prefix::

    session:{rmID}   hash   version, content (JSON), epoch:<kind>, cursor:<kind> ("sequence:offset:last sent")
    sessions         set    rmIDs
    lease:<gateway>  string with a time to live: Redis itself ends a silent gateway's lease
    marker           string   name of the fill
    fill:{name}      string   while the fill runs
    log-mark         string

Scripts do the compare-and-set, and the epoch's check before a cursor moves: Redis runs each as one step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog
from muster_runtime.redis_access import redis_options, redis_problem
from muster_runtime.store_credentials import NO_PASSWORD, NO_TLS_FILES, ClientTls, Password, StoreNames
from pydantic import SecretStr
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError

from muster_gateway.errors import SessionStoreDown
from muster_gateway.sessions.codec import from_json, to_json
from muster_gateway.sessions.contract import Advance, Cursor, Session
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# KEYS: session, sessions. ARGV: rmID, expected version, content, then kind and epoch of each seat.
_COMPARE_AND_SET = """
local stored = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if stored ~= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'version', stored + 1, 'content', ARGV[3])
for i = 4, #ARGV, 2 do redis.call('HSET', KEYS[1], 'epoch:' .. ARGV[i], ARGV[i + 1]) end
redis.call('SADD', KEYS[2], ARGV[1])
return 1
"""
# KEYS: session. ARGV: kind, epoch, cursor.
_ADVANCE = """
if redis.call('HGET', KEYS[1], 'epoch:' .. ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'cursor:' .. ARGV[1], ARGV[3])
return 1
"""
# KEYS: the running fill, marker. ARGV: the fill's name.
_END_FILL = """
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'NX')
return 1
"""
# Longer than any fill; a gateway that dies meanwhile leaves nothing for ever.
_FILL_MAX_S = 3600
# A Redis on the same network answers in a millisecond. After this time the gateway answers "try again".
_TIMEOUT_S = 2.0
# When another gateway dies, thousands of streams take their seats here at once. Each waits for a connection.
_CONNECTIONS_MAX = 32


_NAMES = StoreNames.prefixed(
    "gateway.sessions_", "Redis", account="username password", protocol="url", tls="rediss://", address="url"
)


def _or_down(
    method: Callable[Concatenate[RedisSessions, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RedisSessions, P], Coroutine[Any, Any, T]]:
    """Turns Redis' errors into SessionStoreDown, whose text clients read. The message omits the address, which may hold
    a password, and the settings; the log has these.
    """

    @functools.wraps(method)
    async def wrapped(self: RedisSessions, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(self, *args, **kwargs)
        except (RedisError, OSError, TimeoutError) as error:
            self.report(error)
            raise SessionStoreDown(f"the session store does not answer: {type(error).__name__}") from error

    return wrapped


class RedisSessions:
    """See :class:`muster_gateway.sessions.contract.SessionStore`.

    :param url: redis://[user:…@]host:port/db, or rediss:// with TLS.
    :param prefix: of all keys.
    :param username: when the URL has none; likewise ``password``.
    :raises StoreFileUnusable: the password's file, or one of TLS, cannot be used.
    """

    def __init__(
        self,
        url: SecretStr,
        prefix: str,
        *,
        username: str = "",
        password: Password = NO_PASSWORD,
        tls: ClientTls = NO_TLS_FILES,
    ) -> None:
        self._prefix = prefix
        self._reported = ""
        self._has_tls = url.get_secret_value().startswith("rediss://")
        pool: Any = BlockingConnectionPool.from_url(
            url.get_secret_value(),
            max_connections=_CONNECTIONS_MAX,
            timeout=_TIMEOUT_S,
            decode_responses=True,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), 2),
            **redis_options(url.get_secret_value(), _NAMES, username=username, password=password, tls=tls),
        )
        self._redis: Any = Redis.from_pool(pool)
        self._compare_and_set = self._redis.register_script(_COMPARE_AND_SET)
        self._advance = self._redis.register_script(_ADVANCE)
        self._end_fill = self._redis.register_script(_END_FILL)

    async def start(self) -> None:
        """Connects. Raises SessionStoreDown, here with the setting at fault: no client reads it."""
        try:
            await self._redis.ping()
        except (RedisError, OSError, TimeoutError) as error:
            reason = redis_problem(error, _NAMES, has_tls=self._has_tls) or type(error).__name__
            raise SessionStoreDown(f"the session store does not answer: {reason}") from error

    async def close(self) -> None:
        await self._redis.aclose()

    async def healthy(self) -> bool:
        try:
            is_there = bool(await self._redis.ping())
        except (RedisError, OSError, TimeoutError) as error:
            self.report(error)
            return False
        self._reported = ""
        return is_there

    def report(self, error: BaseException) -> None:
        """Logs a refusal with the setting at fault, once until the store answers again."""
        problem = redis_problem(error, _NAMES, has_tls=self._has_tls)
        if problem is not None and problem != self._reported:
            self._reported = problem
            log.warning("sessions.refused", problem=problem)

    @_or_down
    async def get(self, rm_id: str) -> Session | None:
        content, version = await self._redis.hmget(self._session_key(rm_id), ["content", "version"])
        return from_json(content, int(version)) if content else None

    @_or_down
    async def all(self) -> list[Session]:
        rm_ids = sorted(await self._redis.smembers(self._key("sessions")))
        async with self._redis.pipeline(transaction=False) as pipe:
            for rm_id in rm_ids:
                pipe.hmget(self._session_key(rm_id), ["content", "version"])
            rows = await pipe.execute()
        return [from_json(content, int(version)) for content, version in rows if content]

    @_or_down
    async def compare_and_set(self, session: Session) -> bool:
        epochs = [text for kind, seat in session.seats.items() for text in (str(int(kind)), str(seat.epoch))]
        done = await self._compare_and_set(
            keys=[self._session_key(session.rm_id), self._key("sessions")],
            args=[session.rm_id, session.version, to_json(session), *epochs],
        )
        return bool(done)

    @_or_down
    async def cursors(self, rm_id: str) -> dict[StreamKind, Cursor]:
        texts = await self._redis.hmget(self._session_key(rm_id), [f"cursor:{int(kind)}" for kind in StreamKind])
        return {kind: _cursor(text) for kind, text in zip(StreamKind, texts, strict=True) if text}

    @_or_down
    async def advance(self, moves: Sequence[Advance]) -> list[bool]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for rm_id, kind, epoch, cursor in moves:
                await self._advance(
                    keys=[self._session_key(rm_id)],
                    args=[str(int(kind)), str(epoch), ":".join(map(str, cursor))],
                    client=pipe,
                )
            return [bool(done) for done in await pipe.execute()]

    @_or_down
    async def renew_lease(self, gateway_id: str, ttl_s: float) -> None:
        await self._redis.set(self._key(f"lease:{gateway_id}"), "1", px=max(1, round(ttl_s * 1000)))

    @_or_down
    async def drop_lease(self, gateway_id: str) -> None:
        await self._redis.delete(self._key(f"lease:{gateway_id}"))

    @_or_down
    async def live_gateways(self) -> frozenset[str]:
        start = self._key("lease:")
        keys = self._redis.scan_iter(match=_pattern(start), count=1000)
        return frozenset([key[len(start) :] async for key in keys])

    @_or_down
    async def filled(self) -> str:
        return str(await self._redis.get(self._key("marker")) or "")

    @_or_down
    async def begin_fill(self, name: str) -> None:
        await self._redis.set(self._key(f"fill:{name}"), "1", ex=_FILL_MAX_S)

    @_or_down
    async def end_fill(self, name: str) -> bool:
        return bool(await self._end_fill(keys=[self._key(f"fill:{name}"), self._key("marker")], args=[name]))

    @_or_down
    async def log_mark(self) -> str:
        return str(await self._redis.get(self._key("log-mark")) or "")

    @_or_down
    async def store_log_mark(self, mark: str) -> None:
        await self._redis.set(self._key("log-mark"), mark)

    @_or_down
    async def clear(self) -> None:
        # The marker goes first: a gateway that sees the rest half removed fills the store again.
        await self._redis.delete(self._key("marker"))
        fills = [key async for key in self._redis.scan_iter(match=_pattern(self._key("fill:")), count=1000)]
        rm_ids = await self._redis.smembers(self._key("sessions"))
        keys = [self._key("sessions"), self._key("log-mark"), *fills, *map(self._session_key, rm_ids)]
        await self._redis.delete(*keys)

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _session_key(self, rm_id: str) -> str:
        return f"{self._prefix}session:{rm_id}"


def _pattern(start: str) -> str:
    """Returns the pattern of all keys that begin so."""
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in start) + "*"


def _cursor(text: str) -> Cursor:
    return Cursor(*map(int, text.split(":")))
