"""An informer for a Redis that holds an inventory twice: a hash with the present objects, and a stream with the
changes.

hash (``key``)
    Field ``kind/id`` or a node's id, value a JSON document.

stream (``stream``)
    Entries with ``id``, ``kind`` (default node), ``op`` (``set``, the default, or ``delete``), ``document`` (JSON, of a
    set) and, of a delete, ``version`` if there are versions. A program that changes the hash writes both in one MULTI.

A listing notes the stream's end, reads the hash, and applies the stream's entries since. So the listing is exact, and
the watch continues there. Each step of the watch proves that no entry was lost (trimmed, deleted, flushed): by the
stream's first entry, its largest deleted id, and its count of all entries ever added, which must grow by the number of
entries read. Entry ids are compared with each other, never with a clock.

================================================  ==============================================================
what happens                                      what becomes of it
================================================  ==============================================================
away, loading, no right, no answer in time        SourceUnavailable: nothing counts as gone
neither hash nor stream are there                 the same, unless ``empty_is_valid``: flushed, or another server
no hash, but a stream with entries, now or once   nothing is there: everything is gone
no field ``marker`` in the hash, if that is set   SourceUnavailable: whoever fills it has not finished
stream trimmed past the place, flushed, younger   CursorExpired: listed again
the hash is gone, and no entry said so            the same
a value or an entry that cannot be read           that one object is distrusted, no other
a key of another type                             SourceSaysNonsense
================================================  ==============================================================

Before Redis 7 streams have no such count; there the informer lists again when the stream no longer has the last entry
that was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from muster_core.external.errors import CursorExpired, InformerSettingsWrong, SourceSaysNonsense, SourceUnavailable
from muster_core.external.model import ExternalKind
from muster_runtime.redis_access import redis_options, redis_problem
from muster_runtime.store_credentials import Password, StoreFileUnusable, check_pairs
from pydantic import Field, SecretStr, field_validator, model_validator
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from muster_informers.contract import ChangeType, Delta, Document, InformerContext, Listing, Options
from muster_informers.sources.document_parsing import keyed_document, kind_and_id, unreadable
from muster_informers.sources.error_text import text_of, without_secrets
from muster_informers.sources.options import (
    HEARTBEAT_S,
    Bytes,
    InformerOptions,
    Seconds,
    files_of,
    names_of,
    options_as,
    wrong,
)

T = TypeVar("T")

_SCAN_COUNT = 1000
_ENTRIES_MAX = 500
# How often a listing is tried when the stream is trimmed faster than the hash is read.
_TRIES = 3

EntryId = tuple[int, int]
Entry = tuple[bytes, dict[bytes, bytes]]
Key = tuple[str, str]


class RedisOptions(InformerOptions):
    """The options of an informer of the kind ``redis``."""

    url: SecretStr = Field(description="redis://[user:…@]host:port/db; rediss:// with TLS")
    key: str = Field(min_length=1, description="the hash")
    stream: str = Field(min_length=1, description="the stream of changes")
    username: str = Field("", description="user, if the URL has none")
    password: SecretStr | None = Field(None, description="password, if the URL has none")
    password_file: str = Field("", description="or a file with it, read for each connection")
    ca_file: str = Field("", description="PEM file of trusted CAs, with rediss://; default: the system's")
    client_cert_file: str = Field("", description="PEM file of the client's certificate")
    client_key_file: str = Field("", description="PEM file of its key; default: the certificate's file")
    verify: bool = Field(True, description="whether to verify the server's certificate")
    timeout_s: Seconds = Field(5.0, description="longest wait for an answer")
    max_document_bytes: Bytes = Field(1 << 20, description="largest document; larger ones are not read")
    marker: str = Field("", description="a field that marks the hash as complete; default: it always is")
    empty_is_valid: bool = Field(False, description="whether a server without hash and stream is an empty inventory")
    give_back_stream: str = Field("", description="the stream for returned offers")
    give_back_entries: int = Field(100_000, ge=1, description="approximate number of entries kept in that stream")

    @field_validator("url")
    @classmethod
    def _is_url(cls, value: SecretStr) -> SecretStr:
        url = value.get_secret_value()
        if not url.startswith(("redis://", "rediss://")) or "?" in url:
            raise ValueError("expected redis://[user:…@]host:port/db, or rediss://, without a query")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> RedisOptions:
        if len({self.key, self.stream, self.give_back_stream}) < 3:
            raise ValueError("key, stream and give_back_stream: expected different names")
        url, has_password = self.url.get_secret_value(), bool(self.password or self.password_file)
        tls = files_of(self, ".")
        check_pairs(self.password, Path(self.password_file) if self.password_file else None, tls, "password", "")
        if "@" in url and (self.username or has_password):
            raise ValueError("url has a user or password, and username, password or password_file is set; expected one")
        if self.username and not has_password:
            raise ValueError("username without password and password_file; expected one of them")
        if tls and not url.startswith("rediss://"):
            raise ValueError("ca_file or client_cert_file without TLS; expected rediss:// as url")
        return self


def make_informer(options: Options, context: InformerContext) -> RedisSource:
    """The factory of ``muster.informers``."""
    source_options = options_as(RedisOptions, options, context)
    kind = OfferRedisSource if source_options.give_back_stream else RedisSource
    return kind(source_options, context)


class _StreamPosition(NamedTuple):
    """A place in the stream.

    :param added: how many entries were ever added up to this place; None: the server does not count them.
    """

    last: EntryId
    added: int | None

    def cursor(self) -> str:
        return f"{self.last[0]}-{self.last[1]};{'' if self.added is None else self.added}"


class _Change(NamedTuple):
    """The content of an entry."""

    key: Key
    type: ChangeType
    document: Document


class RedisSource:
    """See :class:`muster_informers.contract.ListWatch`."""

    def __init__(self, options: RedisOptions, context: InformerContext) -> None:
        self._options = options
        self._display_name = f"Redis at {without_secrets(options.url.get_secret_value())}"
        self._names = names_of(
            context, "Redis", account="username password", protocol="url", tls="rediss://", address="url"
        )
        try:
            self._redis = _client(options, context)
        except (ValueError, OSError):
            raise wrong(context, "url", "expected redis://[user:…@]host:port/db, or rediss://") from None
        self._had_hash = False

    async def list(self) -> Listing:
        for _ in range(_TRIES):
            try:
                return await self._list()
            except CursorExpired as error:
                cause = error
        raise SourceUnavailable(f"{self._display_name}: the stream changes faster than the hash is read: {cause}")

    async def _list(self) -> Listing:
        """Lists: 1 find the stream's end, 2 read the hash, 3 judge whether it is an inventory, 4 apply the stream's
        entries since. Raises CursorExpired if such entries are lost.
        """
        start = await self._end()  # 1
        documents_by_key: dict[Key, dict[bytes, Document]] = {}
        fields, is_marked = 0, False
        position = 0
        while True:  # 2
            position, some = await self._request(self._redis.hscan(self._options.key, position, count=_SCAN_COUNT))
            for field, value in some.items():
                fields += 1
                if self._options.marker and field == self._options.marker.encode():
                    is_marked = True
                    continue
                key, document = self._field(field, value)
                documents_by_key.setdefault(key, {})[field] = document
            if position == 0:
                break
        if self._options.marker and not is_marked:  # 3
            raise SourceUnavailable(
                f"{self._display_name}: no field {self._options.marker!r} in {self._options.key} (marker)"
            )
        end = await self._end()
        if not fields and end.last == (0, 0) and not self._options.empty_is_valid:
            raise SourceUnavailable(
                f"{self._display_name}: neither {self._options.key} nor {self._options.stream} is there; expected the "
                "hash, the stream of its changes, or both (or set empty_is_valid)"
            )
        stream_position = start  # 4
        while stream_position.last < end.last:
            entries, stream_position = await self._step(stream_position)
            for change in map(self._change, entries):
                if not change.key[0]:
                    raise CursorExpired("an entry does not name its object")
                documents_by_key.pop(change.key, None)
                if change.type is not ChangeType.DELETED:
                    documents_by_key[change.key] = {b"": change.document}
        self._had_hash = fields > 0
        return Listing(
            [listed_document for documents in documents_by_key.values() for listed_document in documents.values()],
            stream_position.cursor(),
        )

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        position = _parse_cursor(cursor)
        stream = self._options.stream
        try:
            while True:
                before = position.cursor()
                entries, position = await self._step(position)
                if entries:
                    yield self._deltas(entries, before, position.cursor())
                    continue
                await self._check_hash()
                yield ()
                # The entries only wake the watch: the next step reads them and proves that none is missing.
                await self._request(
                    self._redis.xread({stream: _text(position.last)}, count=1, block=round(HEARTBEAT_S * 1000))
                )
        finally:
            await self._redis.connection_pool.disconnect()

    async def close(self) -> None:
        await self._redis.aclose()

    # ---- the stream -------------------------------------------------------------------------------------------------

    async def _end(self) -> _StreamPosition:
        """Returns the stream's end."""
        info = await self._info(self._redis.xinfo_stream(self._options.stream))
        return (
            _StreamPosition((0, 0), 0)
            if info is None
            else _StreamPosition(_id(info["last-generated-id"]), info.get("entries-added"))
        )

    async def _step(self, position: _StreamPosition) -> tuple[Sequence[Entry], _StreamPosition]:
        """The entries after a place, and the place behind them. Raises CursorExpired: some entries are lost."""
        stream = self._options.stream
        async with self._redis.pipeline(transaction=True) as together:
            together.xinfo_stream(stream)
            together.xrange(stream, min=f"({_text(position.last)}", count=_ENTRIES_MAX)
            reply, entries = await self._request(together.execute(raise_on_error=False))
        info = None if _is_missing(reply) else self._check_answer(reply)
        if info is None:
            if position.last == (0, 0):
                return (), position
            raise CursorExpired(f"{self._display_name}: the stream {stream} is gone")
        self._prove(info, position)
        if not self._check_answer(entries):
            return (), position._replace(last=_id(info["last-generated-id"]))
        added = None if position.added is None else position.added + len(entries)
        return entries, _StreamPosition(_id(entries[-1][0]), added)

    def _prove(self, info: dict[str, Any], position: _StreamPosition) -> None:
        """Checks that no entry between a place and the stream's end was lost. Raises CursorExpired."""
        stream, last, added = self._options.stream, _id(info["last-generated-id"]), info.get("entries-added")
        if last < position.last:
            raise CursorExpired(
                f"{self._display_name}: the stream {stream} ends before the last read entry: another server?"
            )
        if added is not None and position.added is not None and added < position.added:
            raise CursorExpired(f"{self._display_name}: the stream {stream} was started again")
        if _id(info.get("max-deleted-entry-id", b"0-0")) > position.last:
            raise CursorExpired(
                f"{self._display_name}: entries of the stream {stream} were deleted before they were read"
            )
        first = info["first-entry"]
        if last == position.last or (first is not None and _id(first[0]) <= position.last):
            return
        # All remaining entries are new; the count tells whether some are missing.
        if added is None or position.added is None or added - position.added != info["length"]:
            raise CursorExpired(f"{self._display_name}: the stream {stream} was trimmed before it was read")

    async def _check_hash(self) -> None:
        """Checks that the hash still exists, if it did and no entry has emptied it. Raises CursorExpired."""
        options = self._options
        type_name = await self._request(self._redis.type(options.key))
        if type_name not in (b"hash", b"none"):
            raise SourceSaysNonsense(f"{self._display_name}: {options.key} is a {type_name.decode()}, expected a hash")
        is_there = type_name == b"hash"
        if is_there and options.marker:
            is_there = bool(await self._request(self._redis.hexists(options.key, options.marker)))
        if not is_there and (options.marker or self._had_hash):
            raise CursorExpired(f"{self._display_name}: the hash {options.key} is gone, or its marker")
        self._had_hash = is_there

    def _deltas(self, entries: Sequence[Entry], before: str, after: str) -> Sequence[Delta]:
        """All deltas but the last have the earlier cursor: a repetition in the same order does no harm."""
        changes = [self._change(entry) for entry in entries]
        last = len(changes) - 1
        return [
            Delta(change.type, change.document, after if index == last else before)
            for index, change in enumerate(changes)
        ]

    # ---- documents --------------------------------------------------------------------------------------------------

    def _field(self, field: bytes, value: bytes) -> tuple[Key, Document]:
        where = f"{self._options.key}"
        try:
            text = field.decode()
        except UnicodeDecodeError:
            return ("", field.hex()), unreadable(f"{where}: a field is not UTF-8")
        return kind_and_id(text), keyed_document(text, value, f"{where} {text}", self._options.max_document_bytes)

    def _change(self, entry: Entry) -> _Change:
        """The change of an entry; if the entry does not name its object, its key has no kind."""
        entry_id, fields = entry
        where = f"{self._options.stream} {entry_id.decode()}"
        try:
            object_id, kind = fields.get(b"id", b"").decode(), fields.get(b"kind", b"node").decode()
            op, version = fields.get(b"op", b"set").decode(), fields.get(b"version", b"").decode()
        except UnicodeDecodeError:
            return _Change(("", where), ChangeType.MODIFIED, unreadable(f"{where}: not UTF-8"))
        if not object_id or kind not in _KINDS:
            reason = f"{where}: kind {kind!r}, id {object_id!r}; expected an id, and one of {', '.join(_KINDS)}"
            return _Change(("", where), ChangeType.MODIFIED, unreadable(reason))
        key = (kind, object_id)
        if op == "delete":
            gone: dict[str, object] = {"kind": kind, "id": object_id}
            if version:
                gone["version"] = int(version) if version.isdecimal() and len(version) < 20 else version
            return _Change(key, ChangeType.DELETED, gone)
        if op != "set":
            reason = f"{where}: op {op!r}, expected set or delete"
            return _Change(key, ChangeType.MODIFIED, unreadable(reason, kind, object_id))
        if b"document" not in fields:
            return _Change(key, ChangeType.MODIFIED, unreadable(f"{where}: no document", kind, object_id))
        document = keyed_document(f"{kind}/{object_id}", fields[b"document"], where, self._options.max_document_bytes)
        return _Change(key, ChangeType.MODIFIED, document)

    # ---- the client -------------------------------------------------------------------------------------------------

    async def _info(self, asking: Awaitable[Any]) -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = await self._answer(asking)
        except ResponseError as error:
            if not _is_missing(error):
                self._check_answer(error)
            return None
        return info

    async def _request(self, asking: Awaitable[Any]) -> Any:
        """Asks the server. Raises SourceUnavailable, SourceSaysNonsense."""
        try:
            return await self._answer(asking)
        except ResponseError as error:
            return self._check_answer(error)

    def _check_answer(self, answer: Any) -> Any:
        """The server's answer. Raises SourceUnavailable, SourceSaysNonsense for an error."""
        if isinstance(answer, ResponseError):
            if (refused := self._refusal(answer)) is not None:
                raise SourceUnavailable(f"{self._display_name}: {refused}") from None
            if "WRONGTYPE" in str(answer):
                raise SourceSaysNonsense(
                    f"{self._display_name}: {self._options.key} is no hash, or {self._options.stream} no stream"
                ) from None
            raise SourceUnavailable(f"{self._display_name}: {text_of(answer)}") from None
        if isinstance(answer, Exception):
            raise SourceUnavailable(f"{self._display_name}: {text_of(answer)}") from None
        return answer

    async def _answer(self, asking: Awaitable[T]) -> T:
        """Awaits an answer in bounded time. Raises SourceUnavailable; ResponseError unchanged."""
        # In addition to the socket's time-outs, because an answer can come in many small pieces.
        timeout_s = 2 * self._options.timeout_s + HEARTBEAT_S
        try:
            async with asyncio.timeout(timeout_s):
                return await asking
        except ResponseError:
            raise
        except TimeoutError:
            raise SourceUnavailable(f"{self._display_name}: no answer in {timeout_s:g} s") from None
        except (RedisError, OSError) as error:
            raise SourceUnavailable(f"{self._display_name}: {self._refusal(error) or text_of(error)}") from None

    def _refusal(self, error: BaseException) -> str | None:
        return redis_problem(error, self._names, has_tls=self._options.url.get_secret_value().startswith("rediss://"))


class OfferRedisSource(RedisSource):
    """Also :class:`muster_informers.contract.OfferTaker`, with connections of its own: it may be called while a watch
    ends and closes the others.
    """

    def __init__(self, options: RedisOptions, context: InformerContext) -> None:
        super().__init__(options, context)
        self._back = _client(options, context)
        self._is_closed = False

    async def give_back(self, offer_ids: Sequence[str]) -> None:
        if self._is_closed:
            raise SourceUnavailable("it is closed")
        async with self._back.pipeline(transaction=True) as together:
            for offer_id in offer_ids:
                entry = {"kind": ExternalKind.OFFER.value, "op": "give_back", "id": offer_id}
                together.xadd(
                    self._options.give_back_stream, entry, maxlen=self._options.give_back_entries, approximate=True
                )
            await self._request(together.execute())

    async def close(self) -> None:
        self._is_closed = True
        await super().close()
        await self._back.aclose()


_KINDS = [kind.value for kind in ExternalKind]


def _client(options: RedisOptions, context: InformerContext) -> Any:
    """Returns a client, which is not connected yet. Raises ValueError, OSError, InformerSettingsWrong."""
    url = options.url.get_secret_value()
    base = Path(context.base)
    password_file = base / options.password_file if options.password_file else None
    names = names_of(context, "Redis", account="username password", protocol="url", tls="rediss://", address="url")
    try:
        more = redis_options(
            url,
            names,
            username=options.username,
            password=Password(options.password, password_file, names.password_file),
            tls=files_of(options, base),
            verify=options.verify,
        )
    except StoreFileUnusable as error:
        raise InformerSettingsWrong(str(error)) from None
    return Redis.from_url(
        url,
        protocol=2,
        decode_responses=False,
        socket_timeout=options.timeout_s + HEARTBEAT_S,
        socket_connect_timeout=options.timeout_s,
        retry=Retry(NoBackoff(), 0),  # the informer retries
        **more,
    )


def _is_missing(answer: object) -> bool:
    return isinstance(answer, ResponseError) and "no such key" in str(answer)


def _id(text: bytes | str) -> EntryId:
    milliseconds, _, sequence = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(milliseconds), int(sequence or 0)


def _text(entry_id: EntryId) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


def _parse_cursor(cursor: str) -> _StreamPosition:
    """Parses a cursor. Raises CursorExpired if it is invalid."""
    last, _, added = cursor.partition(";")
    try:
        return _StreamPosition(_id(last), int(added) if added else None)
    except ValueError:
        raise CursorExpired(f"the cursor {cursor!r} names no place in a stream") from None
